// Renewals in the control plane (docs/client-placement.md): a failed client-placed launch stalls its group,
// and the ranks go on from one number.
#include <gmock/gmock.h>

#include "daemon/control/tests/client_fixture.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RenewalTest : public ClientPlacementTest {
 protected:
  void BeginStalled() {
    Begin();
    PlanAll("ar");
    ASSERT_TRUE(Report(0, 5, 1, DeadlineExceeded("it waited for rank 1")).ok());
    ASSERT_TRUE(PageOf(1).Aborts(1));
  }
  Result<v1::RenewGroupReply> Renew(int rank, v1::RenewGroupRequest::Step step, uint64_t number = 0,
                                    milliseconds wait_budget = kWaitBudget) {
    v1::RenewGroupRequest request;
    request.set_group_id(group);
    request.set_step(step);
    request.set_number(number);
    return control->RenewGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(wait_budget));
  }
  // The number that every rank goes on from, or the failure.
  Result<uint64_t> RenewAll(uint64_t first, uint64_t second) {
    const auto stopped =
        Together(kWorld, [&](int rank) { return Renew(rank, kStopped, rank == 0 ? first : second); });
    const auto ready = Together(kWorld, [&](int rank) { return Renew(rank, kReady); });
    for (const auto* replies : {&stopped, &ready}) {
      for (const auto& reply : *replies) {
        if (!reply.ok()) return reply.status();
        EXPECT_EQ(reply->number(), stopped[0]->number());
      }
    }
    return stopped[0]->number();
  }
  static constexpr auto kStopped = v1::RenewGroupRequest::STOPPED;
  static constexpr auto kReady = v1::RenewGroupRequest::READY;
};

TEST_F(RenewalTest, AFailureStallsTheGroupAndBreaksItNot) {
  BeginStalled();
  const GroupSnapshot stalled = control->SnapshotGroups().at(0);
  EXPECT_EQ(stalled.state, "ready");
  EXPECT_THAT(stalled.state_reason, HasSubstr("stalled, its ranks have to renew it: group"));
  EXPECT_THAT(stalled.state_reason, HasSubstr("rank 1 had not arrived"));
  for (const SessionRef& session : sessions) {
    const auto event = NextOfKind(session, v1::Event::GROUP_STALLED);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    EXPECT_EQ(event->rank(), 1);
    EXPECT_EQ(StatusOf(event->status()).detail().reason, "RANK_LATE");
  }
  EXPECT_EQ(control->Snapshot().groups_stalled_total, 1u);
  EXPECT_EQ(control->Snapshot().groups_broken_total, 0u);
  PlanAll("another");  // its ranks may go on preparing
}

TEST_F(RenewalTest, RanksGoOnBehindEveryNumberThatAWordMayHold) {
  BeginStalled();
  const auto number = RenewAll(7, 6);
  ASSERT_TRUE(number.ok()) << number.status().ToString();
  EXPECT_EQ(*number, 9u) << "launch 8 may have written words before it gave up";
  for (int rank = 0; rank < kWorld; ++rank) EXPECT_EQ(PageOf(rank).FirstAbortedLaunch(), 0u);
  EXPECT_EQ(control->SnapshotGroups().at(0).state_reason, "");
  // The numbers that the renewal has left out were never launched.
  PageOf(0).SetFinished(12);
  EXPECT_EQ(control->SnapshotGroups().at(0).client_launches, 10u);
}

TEST_F(RenewalTest, TheNextFailureStallsItAgainAndAnOlderReportDoesNot) {
  BeginStalled();
  ASSERT_TRUE(RenewAll(5, 5).ok());
  const Status late = DeadlineExceeded("late");
  EXPECT_TRUE(Report(1, 5, 0, late, 0, /*renewals=*/0).ok());
  EXPECT_EQ(PageOf(0).FirstAbortedLaunch(), 0u) << "it is about a launch before the renewal";
  EXPECT_TRUE(Report(1, 8, 0, late, 0, /*renewals=*/1).ok());
  EXPECT_TRUE(PageOf(0).Aborts(1));
  EXPECT_THAT(PageOf(0).Reason().detail().ranks, ElementsAre(0));
  EXPECT_EQ(control->Snapshot().groups_stalled_total, 2u);
}

// The report waits for the other ranks' reports while the ranks renew. In whichever order these calls meet,
// the group is as the renewal has left it.
TEST_F(RenewalTest, AReportThatARenewalOvertakesStallsNothing) {
  Begin();
  PlanAll("ar");
  constexpr uint64_t kRounds = 20;
  uint64_t number = 5;
  for (uint64_t round = 0; round < kRounds; ++round) {
    auto report = std::async(std::launch::async, [&, launch = number] {
      return Report(0, launch, 1, DeadlineExceeded("it waited for rank 1"), 0, /*renewals=*/round);
    });
    const auto renewed = RenewAll(number, number);
    EXPECT_TRUE(report.get().ok()) << "round " << round;
    ASSERT_TRUE(renewed.ok()) << "round " << round << ": " << renewed.status().ToString();
    number = *renewed;
    for (int rank = 0; rank < kWorld; ++rank)
      ASSERT_EQ(PageOf(rank).FirstAbortedLaunch(), 0u) << "round " << round;
    ASSERT_EQ(control->SnapshotGroups().at(0).state_reason, "") << "round " << round;
  }
}

TEST_F(RenewalTest, AGroupThatHasNotFailedIsRenewedToo) {
  Begin();
  PlanAll("ar");
  EXPECT_EQ(RenewAll(3, 3).value(), 5u);
  EXPECT_EQ(RenewAll(5, 5).value(), 7u);
}

TEST_F(RenewalTest, ARankThatDoesNotComeIsNamedAndAllBeginAgain) {
  BeginStalled();
  const Status alone = Renew(0, kStopped, 5, milliseconds(50)).status();
  EXPECT_EQ(alone.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(alone.detail().reason, "RANK_LATE");
  EXPECT_THAT(alone.detail().ranks, ElementsAre(1));
  EXPECT_THAT(alone.message(), HasSubstr("rank 1 did not stop its launches"));
  EXPECT_TRUE(PageOf(0).Aborts(1));
  // The other way round, and then in the second step.
  EXPECT_THAT(Renew(1, kStopped, 5, milliseconds(50)).status().detail().ranks, ElementsAre(0));
  const auto stopped = Together(kWorld, [&](int rank) { return Renew(rank, kStopped, 5); });
  ASSERT_TRUE(stopped[0].ok() && stopped[1].ok());
  EXPECT_THAT(Renew(1, kReady, 0, milliseconds(50)).status().detail().ranks, ElementsAre(0));
  EXPECT_EQ(Renew(0, kReady).status().code(), Code::kDeadlineExceeded) << "of the same renewal";
  EXPECT_TRUE(PageOf(0).Aborts(1));
  EXPECT_EQ(RenewAll(5, 7).value(), 9u);
  EXPECT_EQ(PageOf(0).FirstAbortedLaunch(), 0u);
}

TEST_F(RenewalTest, AnAnswerThatWasLostIsGivenAgain) {
  BeginStalled();
  const auto stopped = Together(kWorld, [&](int rank) { return Renew(rank, kStopped, 5); });
  ASSERT_TRUE(stopped[0].ok() && stopped[1].ok());
  EXPECT_EQ(Renew(0, kStopped, 5)->number(), 7u);
  const auto ready = Together(kWorld, [&](int rank) { return Renew(rank, kReady); });
  ASSERT_TRUE(ready[0].ok() && ready[1].ok());
  const auto again = Renew(0, kReady);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->renewals(), 1u);
}

TEST_F(RenewalTest, ARankThatBeginsAgainHasTheOthersBeginAgain) {
  BeginStalled();
  const auto stopped = Together(kWorld, [&](int rank) { return Renew(rank, kStopped, 5); });
  ASSERT_TRUE(stopped[0].ok() && stopped[1].ok());
  auto ready = std::async(std::launch::async, [&] { return Renew(0, kReady).status(); });
  // It has launched since: the number of before does not hold.
  auto again = std::async(std::launch::async, [&] { return Renew(1, kStopped, 6).status(); });
  EXPECT_EQ(ready.get().code(), Code::kAborted);
  EXPECT_TRUE(Renew(0, kStopped, 5).ok());
  EXPECT_TRUE(again.get().ok());
  EXPECT_TRUE(PageOf(0).Aborts(1)) << "the second step is missing";
}

TEST_F(RenewalTest, ALostRankEndsARenewal) {
  BeginStalled();
  auto stopped = std::async(std::launch::async, [&] { return Renew(0, kStopped, 5).status(); });
  control->SessionLost(IdOf(1), "its process ended");
  EXPECT_EQ(stopped.get().detail().reason, "RANK_LOST");
  EXPECT_EQ(Renew(0, kStopped, 5).status().detail().reason, "RANK_LOST");
}

TEST_F(RenewalTest, ALeaverEndsARenewalInItsSecondStep) {
  BeginStalled();
  const auto stopped = Together(kWorld, [&](int rank) { return Renew(rank, kStopped, 5); });
  ASSERT_TRUE(stopped[0].ok() && stopped[1].ok());
  auto ready = std::async(std::launch::async, [&] { return Renew(0, kReady).status(); });
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(ready.get().detail().reason, "RANK_LEFT");
  EXPECT_TRUE(PageOf(0).Aborts(1));
}

TEST_F(RenewalTest, NonsenseIsRefused) {
  Begin();
  EXPECT_EQ(Renew(0, kStopped).status().code(), Code::kFailedPrecondition);  // no such plan yet
  PlanAll("ar");
  EXPECT_EQ(Renew(0, v1::RenewGroupRequest::UNSPECIFIED).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Renew(0, kStopped, UINT64_MAX).status().detail().field, "number");
  EXPECT_EQ(Renew(0, kReady).status().code(), Code::kAborted);
}

}  // namespace
}  // namespace tandem::daemon
