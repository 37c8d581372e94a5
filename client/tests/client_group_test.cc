// The states of one rank's client-placed launches, by a group without programs.
#include "client/lib/client_launch/client_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "client/lib/client_launch/host/host_client_queue.h"

namespace tandem::client {
namespace {

using runtime::ClientLaunchState;

class ClientGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto fd = VerdictPage::Create();
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    page = *VerdictPage::Map(fd->get());
    group = std::make_unique<ClientGroup>(1, 0, *VerdictPage::Map(fd->get()), [this](FailureReport report) {
      reports.push_back(std::move(report));
    });
    group->SetQueue(std::make_unique<HostClientQueue>(*group));
  }
  // Why the group makes no launch.
  Status Refused() { return group->queue().Failed(); }

  const Status late = DeadlineExceeded("it waited for rank 1").WithDetail({.reason = "RANK_LATE"});
  VerdictPage page;  // as tandemd has it
  std::vector<FailureReport> reports;
  std::unique_ptr<ClientGroup> group;
};

TEST_F(ClientGroupTest, AReportHasTheRowsOfTheLaunch) {
  const int64_t most = (int64_t{1} << 32) - 2;
  for (const int64_t rows : {int64_t{-1}, int64_t{0}, int64_t{17}, most, most + 1}) {
    reports.clear();
    SetUp();
    // As a kernel hands it back.
    EXPECT_FALSE(group->Judge(3, LaunchedPlan::OfWord(LaunchedPlan(7, rows).Word()), late).has_value());
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].plan_id, 7u);
    EXPECT_EQ(reports[0].rows, rows > most ? -1 : rows) << "more rows than a word holds are left out";
  }
}

TEST_F(ClientGroupTest, AFailureIsReportedOnceAndItsVerdictIsAwaited) {
  std::chrono::steady_clock::time_point begin;
  bool is_awaited = false;
  // Again where the system has stopped this thread for longer than a verdict is awaited.
  do {
    reports.clear();
    SetUp();
    begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(group->Judge(3, 7, late).has_value());
    EXPECT_EQ(group->state(), ClientLaunchState::kAwaitingVerdict);
    EXPECT_TRUE(Refused().ok()) << "launches end by the failure that is on the device";
    EXPECT_FALSE(group->BeginRenewal()) << "the report goes before the renewal";
    page.Abort(4, Unavailable("rank 2 has left"));  // launch 3 may end
    is_awaited = !group->Judge(3, 7, late).has_value();
  } while (std::chrono::steady_clock::now() - begin >= kVerdictWaitBudget);
  EXPECT_TRUE(is_awaited);
  page.Abort(1, DeadlineExceeded("rank 2 had not arrived"));
  EXPECT_EQ(group->Judge(3, 7, late)->message(), "rank 2 had not arrived");
  EXPECT_EQ(group->Judge(4, 7, late)->message(), "rank 2 had not arrived");
  EXPECT_EQ(group->state(), ClientLaunchState::kStalled);
  EXPECT_EQ(Refused().message(), "rank 2 had not arrived");
  EXPECT_EQ(group->Failures(), 1u);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].launch, 3u);
  EXPECT_EQ(reports[0].plan_id, 7u);
}

TEST_F(ClientGroupTest, LaunchesAreCountedAsTheyAreMadeUntilGraphsMakeThem) {
  EXPECT_EQ(group->NextLaunch(), 1u);
  group->NoteLaunched(7);
  group->NoteLaunched(8);
  EXPECT_EQ(group->NextLaunch(), 3u) << "neither has ended";
  EXPECT_EQ(page.Launched(), 2u);
  EXPECT_EQ(page.PlanOfLaunch(1), 7u);
  EXPECT_EQ(page.PlanOfLaunch(2), 8u);
  group->Restart(40);
  EXPECT_EQ(group->NextLaunch(), 41u);
  EXPECT_EQ(page.Launched(), 40u);
  group->NoteCaptured();
  group->NoteLaunched(7);
  EXPECT_EQ(group->NextLaunch(), 0u);
  EXPECT_EQ(page.Launched(), 0u);
  group->Restart(50);
  EXPECT_EQ(group->NextLaunch(), 0u) << "its graphs outlive a renewal";
  EXPECT_EQ(page.Launched(), 0u);
}

TEST_F(ClientGroupTest, AFailureThatIsJudgedAlreadyIsNotReported) {
  page.Abort(1, Unavailable("rank 1 was lost"));
  EXPECT_EQ(group->Judge(3, 7, late)->message(), "rank 1 was lost");
  EXPECT_TRUE(reports.empty());
}

TEST_F(ClientGroupTest, ARefusedLaunchStandsForLaterFailures) {
  group->Refuse(7, OutOfRange("slot 0 is too small"));
  EXPECT_EQ(group->state(), ClientLaunchState::kStalled);
  EXPECT_EQ(group->Judge(3, 7, late)->detail().reason, "LAUNCH_REFUSED");
  group->Refuse(7, OutOfRange("slot 1 is too small"));
  EXPECT_EQ(reports.size(), 1u);
}

TEST_F(ClientGroupTest, NoLaunchIsMadeBeforeARenewalHasEndedOnAllRanks) {
  ASSERT_TRUE(group->BeginRenewal());
  EXPECT_EQ(Refused().detail().reason, "RENEWING");
  EXPECT_TRUE(group->Failure().ok()) << "no launch under way has failed";
  EXPECT_EQ(group->Judge(3, 7, late)->detail().reason, "RANK_LATE");
  EXPECT_TRUE(reports.empty()) << "no report interrupts a renewal";
  group->FailRenewal();
  EXPECT_EQ(group->state(), ClientLaunchState::kStalled);
  EXPECT_EQ(Refused().detail().reason, "RENEWING");
  ASSERT_TRUE(group->BeginRenewal());
  group->EndRenewal(1);
  EXPECT_TRUE(Refused().ok());
  EXPECT_FALSE(group->Judge(9, 7, late).has_value());
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].renewals, 1u);
}

TEST_F(ClientGroupTest, ARenewalThatFailsLeavesTheCauseOfThePage) {
  ASSERT_TRUE(group->BeginRenewal());
  page.Abort(1, Unavailable("rank 1 was lost").WithDetail({.reason = "RANK_LOST"}));
  group->FailRenewal();
  EXPECT_EQ(Refused().detail().reason, "RANK_LOST");
}

TEST_F(ClientGroupTest, ARenewalThatHasNotBegunChangesNothingByFailing) {
  group->FailRenewal();
  EXPECT_EQ(group->state(), ClientLaunchState::kRunning);
  EXPECT_TRUE(Refused().ok());
}

// Launches that ended well before have not failed.
TEST_F(ClientGroupTest, TheEndOfTheSessionFailsNoLaunchThatHasEnded) {
  group->CutOff(Unavailable("the daemon is gone").WithDetail({.reason = "DAEMON_LOST"}));
  EXPECT_EQ(group->state(), ClientLaunchState::kOver);
  EXPECT_TRUE(group->Failure().ok());
  EXPECT_EQ(Refused().detail().reason, "DAEMON_LOST");
  EXPECT_EQ(group->Judge(1, 7, late)->detail().reason, "DAEMON_LOST");
  EXPECT_EQ(group->Failure().detail().reason, "DAEMON_LOST");
  EXPECT_TRUE(reports.empty());
}

TEST_F(ClientGroupTest, ALostContextFailsAllLaunches) {
  EXPECT_FALSE(group->Judge(3, 7, late).has_value());
  group->LoseContext(Unavailable("the GPU's context is gone"));
  EXPECT_FALSE(group->AwaitsVerdict());
  EXPECT_EQ(group->Judge(3, 7, late)->message(), "the GPU's context is gone");
  EXPECT_FALSE(group->BeginRenewal());
}

}  // namespace
}  // namespace tandem::client
