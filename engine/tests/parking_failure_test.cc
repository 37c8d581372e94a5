// How offered and parked launches end when their ranks do not come: as without parking, and nothing may
// happen on a rank that has not arrived.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "engine/tests/parking_fixture.h"

namespace tandem::engine {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

v1::Command Leave(const TestGroup& group, int rank) {
  v1::Command leave;
  leave.mutable_leave_group()->set_group_id(group.id);
  leave.mutable_leave_group()->set_rank(static_cast<uint32_t>(rank));
  return leave;
}

TEST_F(ParkingTest, ALateRankIsReportedAndEndsByTheDeadlineAndTheGroupGoesOn) {
  Open(1500);
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  std::memset(Data(0), 0x11, 3 * kGathered * 4);
  std::memset(Data(1), 0x22, 3 * kGathered * 4);
  const auto begin = Clock::now();
  channels_[0]->Reach(sequence);
  v1::Message late;
  ASSERT_TRUE(node_.Await(
      0, [](const v1::Message& m) { return m.has_late(); }, &late));
  ASSERT_EQ(late.late().missing_ranks_size(), 1);
  EXPECT_EQ(late.late().missing_ranks(0), 1);
  ASSERT_TRUE(channels_[0]->Wait(sequence));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1500));
  const LaunchOutcome outcome = channels_[0]->producer.Outcome(sequence);
  EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded) << outcome.status.ToString();
  EXPECT_THAT(outcome.status.message(), HasSubstr("launch 1 of plan " + std::to_string(plan) +
                                                  " ended by its deadline: rank 1 had not arrived"));
  EXPECT_EQ(outcome.who_rank, 1);
  // The late rank's memory is as its stream left it, and so is the other's: nothing was copied.
  ASSERT_TRUE(channels_[1]->Wait(sequence));
  EXPECT_EQ(channels_[1]->producer.Outcome(sequence).status.code(), Code::kDeadlineExceeded);
  for (int i = 0; i < 3 * kGathered; ++i) {
    ASSERT_EQ(Data(0)[i], Data(0)[0]);
    ASSERT_EQ(Data(1)[i], Data(1)[0]);
  }
  channels_[1]->Reach(sequence);  // it comes after all
  for (int round = 0; round < 3; ++round) {
    uint64_t next = 0;
    for (auto& channel : channels_) next = channel->Launch(Gather(plan));
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(next));
      ASSERT_TRUE(channel->producer.Outcome(next).status.ok())
          << channel->producer.Outcome(next).status.ToString();
    }
    EXPECT_EQ(std::memcmp(Data(0) + 2 * kGathered, Data(1), kGathered * 4), 0);
  }
}

TEST_F(ParkingTest, ABreakReleasesTheLanesAndARankThatHasNotArrivedDoesNothing) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  std::memset(Data(0), 0x11, 3 * kGathered * 4);
  std::memset(Data(1), 0x22, 3 * kGathered * 4);
  channels_[0]->Reach(sequence);
  const auto begin = Clock::now();
  for (int gpu : {0, 1})
    ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 was killed", "rank 1").ok());
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    const LaunchOutcome outcome = channel->producer.Outcome(sequence);
    EXPECT_EQ(outcome.status.code(), Code::kUnavailable) << outcome.status.ToString();
    EXPECT_THAT(outcome.status.message(), HasSubstr("rank 1 was killed"));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  for (int i = 0; i < 3 * kGathered; ++i) ASSERT_EQ(Data(1)[i], Data(1)[0]) << i;
  for (int i = 0; i < 3 * kGathered; ++i) ASSERT_EQ(Data(0)[i], Data(0)[0]) << i;
  EXPECT_EQ(channels_[0]->LaunchAndWait(Gather(plan)).status.code(), Code::kUnavailable);
}

TEST_F(ParkingTest, ABreakThatOneEngineAloneIsToldOfReachesTheOthersByTheLog) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  channels_[1]->Reach(sequence);
  ASSERT_TRUE(node_.Break(0, group_, Code::kAborted, "the engine of rank 1 ended", "rank 1").ok());
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    EXPECT_FALSE(channel->producer.Outcome(sequence).status.ok());
  }
}

TEST_F(ParkingTest, AnEngineThatEndsLeavesItsPeersToTheirBreak) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  channels_[0]->Reach(sequence);
  node_.EndEngine(1);
  ASSERT_TRUE(node_.Break(0, group_, Code::kAborted, "the engine of rank 1 ended", "rank 1").ok());
  ASSERT_TRUE(channels_[0]->Wait(sequence));
  // By the log if tandemd's reason does not come first.
  EXPECT_THAT(channels_[0]->producer.Outcome(sequence).status.code(),
              AnyOf(Code::kAborted, Code::kUnavailable));
  // Rank 1's stream, should it come, waits for nothing.
  EXPECT_EQ(channels_[1]->producer.Done(), kReleaseValue);
}

// A client keeps a channel's pages until its stream has written the request word of the last launch: what the
// engine wrote there in the stream's place does not stay.
TEST_F(ParkingTest, TheRequestWordOfALaunchThatIsLetGoIsTheStreamsAgain) {
  Open(300);
  const uint64_t plan = AddGatherPlan();
  for (bool breaks : {false, true}) {
    const uint64_t sequence = PushEverywhere(Gather(plan));
    channels_[0]->Reach(sequence);
    if (breaks) {
      for (int gpu : {0, 1})
        ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 was killed", "rank 1").ok());
    }
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(sequence));
      EXPECT_FALSE(channel->producer.Outcome(sequence).status.ok());
    }
    for (int gpu : {0, 1}) ASSERT_TRUE(node_.AwaitQueued(gpu, 0));
    EXPECT_EQ(channels_[0]->producer.request()->load(), sequence);
    EXPECT_EQ(channels_[1]->producer.request()->load(), sequence - 1);
    channels_[1]->Reach(sequence);  // it comes after all
    if (breaks) break;
    ASSERT_NO_FATAL_FAILURE(LaunchWell(plan));
  }
}

TEST_F(ParkingTest, OffersEndWithTheirGroupAndFailWhenTheyArrive) {
  Open();
  const uint64_t plan = AddGatherPlan();
  ASSERT_EQ(channels_[0]->Push(Gather(plan)), 1u);  // rank 1 never pushes: nothing is parked
  ASSERT_TRUE(node_.AwaitQueued(0, 0));
  for (int gpu : {0, 1})
    ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 was killed", "rank 1").ok());
  EXPECT_EQ(channels_[0]->producer.Done(), 0u);
  channels_[0]->Reach(1);
  ASSERT_TRUE(channels_[0]->Wait(1));
  EXPECT_EQ(channels_[0]->producer.Outcome(1).status.code(), Code::kUnavailable);
}

TEST_F(ParkingTest, AReleasedPlanTakesItsParkedLaunchBack) {
  Open();
  const uint64_t plan = AddGatherPlan(), other = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(plan);
  ASSERT_TRUE(node_.Call(1, remove).ok());
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    EXPECT_EQ(channel->producer.Outcome(sequence).status.code(), Code::kFailedPrecondition);
    channel->Reach(sequence);
  }
  for (auto& channel : channels_) channel->Launch(Gather(other));
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence + 1));
    EXPECT_TRUE(channel->producer.Outcome(sequence + 1).status.ok());
  }
}

// The engines agree on it once it is the first on the lanes, however long that takes: here until the first
// one's deadline, longer than they may take to agree.
TEST_F(ParkingTest, ALaunchThatIsTakenBackBehindAnotherEndsWhenItsTurnComes) {
  Open(3000);
  const uint64_t first = AddGatherPlan(), second = AddGatherPlan();
  PushEverywhere(Gather(first), 1);
  const uint64_t sequence = PushEverywhere(Gather(second), 2);
  v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(second);
  auto id = node_.Send(1, remove);
  ASSERT_TRUE(id.ok());
  channels_[0]->Reach(sequence - 1);
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    EXPECT_EQ(channel->producer.Outcome(sequence - 1).status.code(), Code::kDeadlineExceeded);
    const LaunchOutcome outcome = channel->producer.Outcome(sequence);
    EXPECT_EQ(outcome.status.code(), Code::kFailedPrecondition) << outcome.status.ToString();
    channel->Reach(sequence);
  }
  v1::Message answer;
  ASSERT_TRUE(node_.Await(
      1, [&](const v1::Message& m) { return m.has_ack() && m.ack().id() == *id; }, &answer));
  EXPECT_EQ(answer.ack().code(), 0);
  ASSERT_NO_FATAL_FAILURE(LaunchWell(first));
}

TEST_F(ParkingTest, AParkedLaunchEndsWhenARankLeavesThatHasNotArrived) {
  Open();
  const uint64_t sequence = PushEverywhere(Gather(AddGatherPlan()));
  std::memset(Data(1), 0x22, 3 * kGathered * 4);
  channels_[0]->Reach(sequence);
  // Answered when nothing of the rank's is under way.
  for (int gpu : {1, 0}) ASSERT_TRUE(node_.Call(gpu, Leave(group_, 1)).ok());
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    const LaunchOutcome outcome = channel->producer.Outcome(sequence);
    EXPECT_EQ(outcome.status.code(), Code::kUnavailable);
    EXPECT_EQ(outcome.status.message(), "rank 1 has left the group");
    EXPECT_EQ(outcome.who_rank, 1);
  }
  for (int i = 0; i < 3 * kGathered; ++i) ASSERT_EQ(Data(1)[i], Data(1)[0]) << i;
}

TEST_F(ParkingTest, AnOfferEndsWhenItsRankLeaves) {
  Open();
  const uint64_t plan = AddGatherPlan();
  ASSERT_EQ(channels_[1]->Push(Gather(plan)), 1u);
  ASSERT_TRUE(AwaitOffered(1, 1));
  for (int gpu : {1, 0}) ASSERT_TRUE(node_.Call(gpu, Leave(group_, 1)).ok());
  ASSERT_EQ(channels_[0]->Launch(Gather(plan)), 1u);
  channels_[1]->Reach(1);  // it comes after all
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(1));
    EXPECT_EQ(channel->producer.Outcome(1).status.code(), Code::kUnavailable);
    EXPECT_EQ(channel->producer.Outcome(1).who_rank, 1);
  }
}

TEST_F(ParkingTest, TheEndOfAChannelTakesBackWhatNeverArrives) {
  Open();
  const uint64_t plan = AddGatherPlan();
  for (bool parked : {true, false}) {
    uint64_t sequence = 0;
    if (parked) {
      sequence = PushEverywhere(Gather(plan));
      channels_[0]->Reach(sequence);
    } else {
      ASSERT_NE(channels_[1]->Push(Gather(plan)), 0u);
      ASSERT_TRUE(AwaitOffered(1, 3));
    }
    v1::Command close;
    close.mutable_close_channel()->set_channel_id(channels_[1]->id);
    ASSERT_TRUE(node_.Call(1, close).ok());
    if (!parked) sequence = channels_[0]->Launch(Gather(plan));
    ASSERT_TRUE(channels_[0]->Wait(sequence));
    const LaunchOutcome outcome = channels_[0]->producer.Outcome(sequence);
    EXPECT_EQ(outcome.status.code(), Code::kFailedPrecondition) << outcome.status.ToString();
    EXPECT_EQ(outcome.who_rank, 1);
    // The launch on the channel that ended counts: the next ones meet. Nobody hears of its end on rank 1.
    ASSERT_TRUE(node_.AwaitQueued(1, 0));
    channels_[1] = node_.OpenChannel(1);
    ASSERT_NO_FATAL_FAILURE(LaunchWell(plan));
  }
}

TEST_F(ParkingTest, WhatIsBehindAParkedLaunchWaitsNoLongerThanItMayRun) {
  Open(300);
  const uint64_t parked = AddGatherPlan(), behind = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(parked));
  // By channels that came later. At the parked one nobody arrives: no deadline of its own runs.
  std::vector<std::unique_ptr<TestChannel>> others;
  for (int gpu : {0, 1}) others.push_back(node_.OpenChannel(gpu));
  for (auto& other : others) ASSERT_EQ(other->Launch(Gather(behind)), 1u);
  for (auto& other : others) {
    ASSERT_TRUE(other->Wait(1));
    EXPECT_TRUE(other->producer.Outcome(1).status.ok()) << other->producer.Outcome(1).status.ToString();
  }
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    const LaunchOutcome outcome = channel->producer.Outcome(sequence);
    EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded);
    EXPECT_THAT(outcome.status.message(), HasSubstr("ranks 0, 1 had not arrived"));
  }
}

TEST_F(ParkingTest, APlanThatIsHeldBackCanBeRemoved) {
  Open();
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  const uint64_t sequence = PushEverywhere(Entry(plan));
  v1::Command add;
  add.mutable_add_plan()->set_plan_id(4711);
  add.mutable_add_plan()->set_group_id(group_.id);
  add.mutable_add_plan()->set_plan_index(group_.next_plan_index);
  auto id = node_.Send(0, add);
  ASSERT_TRUE(id.ok());
  v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(4711);
  ASSERT_TRUE(node_.Call(0, remove).ok());
  v1::Message answer;
  ASSERT_TRUE(node_.Await(
      0, [&](const v1::Message& m) { return m.has_ack() && m.ack().id() == *id; }, &answer));
  EXPECT_EQ(answer.ack().code(), static_cast<int>(Code::kAborted));
  for (auto& channel : channels_) channel->Reach(sequence);
  for (auto& channel : channels_) ASSERT_TRUE(channel->Wait(sequence));
  EXPECT_EQ(node_.Call(0, remove).code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::engine
