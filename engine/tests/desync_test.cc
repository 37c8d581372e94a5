// Ranks that make other calls than their peers: the group stalls on all ranks, and a renewal mends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/tests/engine_node.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class DesyncTest : public ::testing::Test {
 protected:
  static constexpr int kWorld = 2;

  void Begin(uint64_t deadline_ms, bool ordered = true) {
    if (ordered) node_.SetOrdered();
    group_ = node_.AddGroup(100, {0, 1}, deadline_ms);
    sum_ = node_.AddBarrierPlan(&group_);
    other_ = node_.AddBarrierPlan(&group_);
    for (int rank = 0; rank < kWorld; ++rank) {
      channels_[rank] = node_.OpenChannel(rank);
      more_[rank] = node_.OpenChannel(rank);
    }
  }
  LaunchOutcome Outcome(TestChannel& channel, uint64_t sequence) {
    EXPECT_TRUE(channel.Wait(sequence));
    return channel.producer.Outcome(sequence);
  }
  // They meet, however long one of them is stopped before.
  void RunOnAll(uint64_t plan) {
    std::array<uint64_t, kWorld> sequences{};
    LaunchEntry entry = Entry(plan);
    entry.deadline_ns = 60'000'000'000;
    for (int rank = 0; rank < kWorld; ++rank) sequences[rank] = channels_[rank]->Launch(entry);
    for (int rank = 0; rank < kWorld; ++rank) {
      const LaunchOutcome outcome = Outcome(*channels_[rank], sequences[rank]);
      EXPECT_TRUE(outcome.status.ok()) << rank << ": " << outcome.status.ToString();
    }
  }
  Status Renew(int rank, v1::RenewGroup::Step step) {
    v1::Command command;
    command.mutable_renew_group()->set_group_id(group_.id);
    command.mutable_renew_group()->set_step(step);
    return node_.Call(rank, command);
  }
  void RenewAll() {
    for (const auto step : {v1::RenewGroup::STOP, v1::RenewGroup::RESUME}) {
      for (int rank = 0; rank < kWorld; ++rank) EXPECT_TRUE(Renew(rank, step).ok());
    }
  }
  Status FailLaunch(int rank, uint64_t launch, bool decides) {
    v1::Command command;
    v1::FailLaunch& fail = *command.mutable_fail_launch();
    fail.set_plan_id(sum_);
    fail.set_launch(launch);
    fail.set_decides(decides);
    fail.set_code(static_cast<int>(Code::kInvalidArgument));
    fail.set_message("dtype differs");
    fail.set_reason("FIELD_MISMATCH");
    fail.set_rank(1);
    return node_.Call(rank, command);
  }

  EngineNode node_{kWorld};
  TestGroup group_;
  uint64_t sum_ = 0, other_ = 0;
  std::array<std::unique_ptr<TestChannel>, kWorld> channels_, more_;
};

TEST_F(DesyncTest, ASkippedLaunchFailsAllLaterOnesUntilARenewal) {
  Begin(200);
  RunOnAll(sum_);
  const LaunchOutcome late = channels_[0]->LaunchAndWait(Entry(sum_));
  EXPECT_EQ(late.status.detail().reason, "RANK_LATE") << late.status.ToString();
  // The next step of the rank that has skipped one, and of the other: neither is paired with the other.
  for (const uint64_t plan : {sum_, other_}) {
    for (const int rank : {1, 0}) {
      const LaunchOutcome outcome = channels_[rank]->LaunchAndWait(Entry(plan));
      EXPECT_EQ(outcome.status.detail().reason, "RANK_LATE") << rank << ": " << outcome.status.ToString();
      EXPECT_EQ(outcome.who_rank, 1);
      // The launch that the rank has skipped may still end with its own failure.
      const bool is_skipped = plan == sum_ && rank == 1;
      EXPECT_THAT(outcome.status.message(),
                  HasSubstr(is_skipped ? "rank 1 had not arrived" : "stalled until it is renewed"));
    }
  }
  RenewAll();
  RunOnAll(sum_);
  RunOnAll(other_);
}

// A group whose ranks may make calls in any order has no wrong one: the deadline ends the launches.
TEST_F(DesyncTest, ALateRankIsNamedWithTheOtherCallThatItWaitsIn) {
  Begin(3000, /*ordered=*/false);
  RunOnAll(sum_);
  RunOnAll(other_);
  const uint64_t first = channels_[0]->Launch(Entry(sum_)), second = channels_[1]->Launch(Entry(other_));
  const LaunchOutcome of_first = Outcome(*channels_[0], first), of_second = Outcome(*channels_[1], second);
  EXPECT_EQ(of_first.status.detail().reason, "RANK_LATE");
  EXPECT_THAT(of_first.status.message(),
              HasSubstr("rank 1 had not arrived; rank 1 waits for rank 0 in launch 2 of plan " +
                        std::to_string(other_)));
  EXPECT_EQ(of_second.status.detail().reason, "RANK_LATE");
  EXPECT_THAT(of_second.status.message(),
              HasSubstr("rank 0 had not arrived; rank 0 waits for rank 1 in launch 2 of plan " +
                        std::to_string(sum_)));
}

TEST_F(DesyncTest, ARankThatLaunchesAnotherPlanIsNamedLongBeforeTheDeadline) {
  Begin(60000);
  RunOnAll(sum_);
  RunOnAll(other_);
  const auto begin = Clock::now();
  const uint64_t first = channels_[0]->Launch(Entry(sum_)), second = channels_[1]->Launch(Entry(other_));
  const LaunchOutcome waited = Outcome(*channels_[0], first), instead = Outcome(*channels_[1], second);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  for (const LaunchOutcome& outcome : {waited, instead}) {
    EXPECT_EQ(outcome.status.detail().reason, "DESYNC") << outcome.status.ToString();
    // Either rank may be the one that makes another call than its peers.
    EXPECT_THAT(outcome.status.message(), HasSubstr("launch 2 of plan"));
    EXPECT_THAT(outcome.status.message(), HasSubstr("call " + std::to_string(sum_)));
    EXPECT_THAT(outcome.status.message(), HasSubstr("call " + std::to_string(other_)));
    EXPECT_THAT(outcome.status.message(), HasSubstr(" instead"));
    EXPECT_EQ(outcome.who_rank, waited.who_rank);
  }
  RenewAll();
  RunOnAll(other_);
  RunOnAll(sum_);
}

TEST_F(DesyncTest, LaunchesInOneOrderOnSeveralStreamsAreNone) {
  Begin(60000);
  // Both ranks launch `sum_`, then `other_`, on two streams each. The streams come to them in other orders.
  std::array<uint64_t, kWorld> first{}, second{};
  for (int rank = 0; rank < kWorld; ++rank) {
    first[rank] = channels_[rank]->Push(Entry(sum_));
    second[rank] = more_[rank]->Push(Entry(other_));
  }
  channels_[0]->Reach(first[0]);
  more_[1]->Reach(second[1]);
  // Two reports of a late rank come after 1 s and 2 s: by then each rank has looked for another call of the
  // other one many times.
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(node_.Await(rank, [](const v1::Message& message) { return message.has_late(); }));
  }
  channels_[1]->Reach(first[1]);
  more_[0]->Reach(second[0]);
  for (int rank = 0; rank < kWorld; ++rank) {
    EXPECT_TRUE(Outcome(*channels_[rank], first[rank]).status.ok());
    EXPECT_TRUE(Outcome(*more_[rank], second[rank]).status.ok());
  }
}

TEST_F(DesyncTest, ALaunchThatARankWillNotMakeFailsForTheToldReason) {
  Begin(60000);
  RunOnAll(sum_);
  const uint64_t waiting = channels_[0]->Launch(Entry(sum_));
  ASSERT_TRUE(node_.AwaitQueued(0, 1));
  for (int rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(FailLaunch(rank, 2, false).ok());
  // It has been made on rank 0; on rank 1 it has been pushed, though its stream has not come to it.
  EXPECT_EQ(FailLaunch(0, 2, true).code(), Code::kFailedPrecondition);
  const uint64_t pushed = channels_[1]->Push(Entry(sum_));
  EXPECT_EQ(FailLaunch(1, 2, true).code(), Code::kFailedPrecondition);
  channels_[1]->Reach(pushed);
  EXPECT_TRUE(Outcome(*channels_[0], waiting).status.ok());
  EXPECT_TRUE(Outcome(*channels_[1], pushed).status.ok());
  const uint64_t alone = channels_[0]->Launch(Entry(sum_));
  ASSERT_TRUE(node_.AwaitQueued(0, 1));
  for (int rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(FailLaunch(rank, 3, false).ok());
  EXPECT_TRUE(FailLaunch(1, 3, true).ok());
  const LaunchOutcome outcome = Outcome(*channels_[0], alone);
  EXPECT_EQ(outcome.status.detail().reason, "FIELD_MISMATCH") << outcome.status.ToString();
  EXPECT_THAT(outcome.status.message(), HasSubstr("dtype differs"));
  EXPECT_EQ(outcome.who_rank, 1);
  RenewAll();
  RunOnAll(sum_);
}

TEST_F(DesyncTest, ALaunchThatAGraphMayMakeIsNotFailed) {
  Begin(60000);
  LaunchEntry captured = Entry(sum_);
  ASSERT_TRUE(channels_[1]->producer.Arm(&captured).ok());
  const uint64_t waiting = channels_[0]->Launch(Entry(sum_));
  ASSERT_TRUE(node_.AwaitQueued(0, 1));
  EXPECT_EQ(FailLaunch(1, 1, true).code(), Code::kFailedPrecondition);
  const uint64_t made = channels_[1]->Launch(Entry(sum_));
  EXPECT_TRUE(Outcome(*channels_[0], waiting).status.ok());
  EXPECT_TRUE(Outcome(*channels_[1], made).status.ok());
}

TEST_F(DesyncTest, ARankThatRenewsEndsTheLaunchesThatWaitForIt) {
  Begin(60000);
  const uint64_t waiting = channels_[0]->Launch(Entry(sum_));
  ASSERT_TRUE(node_.AwaitQueued(0, 1));
  EXPECT_TRUE(Renew(1, v1::RenewGroup::STALL).ok());
  const LaunchOutcome outcome = Outcome(*channels_[0], waiting);
  EXPECT_EQ(outcome.status.detail().reason, "RENEWING") << outcome.status.ToString();
  EXPECT_EQ(outcome.who_rank, 1);
  RenewAll();
  RunOnAll(sum_);
}

TEST_F(DesyncTest, ARenewalWaitsForLaunchesThatHaveStarted) {
  Begin(60000);
  RunOnAll(sum_);
  RenewAll();  // of a group that is not stalled
  RunOnAll(sum_);
  // An overlap counts on the one rank before the renewal, on the other only by it.
  const uint64_t waiting = channels_[0]->Launch(Entry(sum_));
  ASSERT_TRUE(node_.AwaitQueued(0, 1));
  EXPECT_EQ(more_[0]->LaunchAndWait(Entry(sum_)).status.detail().reason, "LAUNCH_OVERLAP");
  EXPECT_TRUE(Renew(1, v1::RenewGroup::STALL).ok());
  EXPECT_FALSE(Outcome(*channels_[0], waiting).status.ok());
  RenewAll();
  RunOnAll(sum_);
  RunOnAll(other_);
}

}  // namespace
}  // namespace tandem::engine
