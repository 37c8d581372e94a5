// Offers for parking that are taken back: a launch that one rank has offered is not parked any more once that
// rank's GPU is shared, however late the other ranks offer it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "engine/tests/parking_fixture.h"

namespace tandem::engine {
namespace {

class ParkingRevokeTest : public ParkingTest {
 protected:
  // Until the engine has looked at its rings and at the log since the call, and has decided what it could.
  void AwaitTurn(int gpu) {
    // It tells how far it has read the log once it has decided. The first entry may find it behind its look
    // at the rings.
    for (int i = 0; i < 2; ++i) {
      const uint64_t position = node_.log().Head();
      node_.log().Append(
          {.kind = LogKind::kBreak, .mask = 0, .plan = kLogIdMask, .count = 1});  // of no group
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (node_.log().ProgressOf(gpu).read_position <= position &&
             std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      ASSERT_GT(node_.log().ProgressOf(gpu).read_position, position);
    }
  }

  // Launches that have been parked since position `from` of the log.
  int Parks(uint64_t from = 0) {
    int parks = 0;
    LogEntry entry;
    for (uint64_t position = from; node_.log().Read(position, &entry) == LogRead::kEntry; ++position) {
      parks += entry.kind == LogKind::kPark;
    }
    return parks;
  }

  void EndWell(uint64_t sequence) {
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(sequence));
      const LaunchOutcome outcome = channel->producer.Outcome(sequence);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    }
  }

  // Rank 0 offers a launch, then `shared` comes to its GPU, and then rank 1 pushes the launch.
  void OfferedBefore(const std::function<void()>& shared, bool arrived = false) {
    Open();
    const uint64_t plan = AddGatherPlan();
    ASSERT_EQ(channels_[0]->Push(Gather(plan)), 1u);
    ASSERT_TRUE(AwaitOffered(0, 1));
    if (arrived) channels_[0]->Reach(1);
    ASSERT_NO_FATAL_FAILURE(AwaitTurn(0));
    shared();
    ASSERT_NO_FATAL_FAILURE(AwaitTurn(0));
    ASSERT_EQ(channels_[1]->Push(Gather(plan)), 1u);
    ASSERT_NO_FATAL_FAILURE(AwaitTurn(1));
    ASSERT_NO_FATAL_FAILURE(AwaitTurn(0));
    EXPECT_EQ(Parks(), 0);
    for (auto& channel : channels_) channel->Reach(1);
    ASSERT_NO_FATAL_FAILURE(EndWell(1));
  }

  TestGroup joined_;
};

TEST_F(ParkingRevokeTest, AnOfferIsParkedOnceAllRanksHaveMadeIt) {
  Open();
  const uint64_t plan = AddGatherPlan();
  ASSERT_EQ(channels_[0]->Push(Gather(plan)), 1u);
  ASSERT_TRUE(AwaitOffered(0, 1));
  ASSERT_EQ(channels_[1]->Push(Gather(plan)), 1u);
  ASSERT_NO_FATAL_FAILURE(AwaitTurn(1));
  EXPECT_EQ(Parks(), 1) << "what the other tests rule out";
  for (auto& channel : channels_) channel->Reach(1);
  ASSERT_NO_FATAL_FAILURE(EndWell(1));
}

TEST_F(ParkingRevokeTest, BeforeAnotherGroupJoins) {
  OfferedBefore([&] { joined_ = node_.AddGroup(101, {0}); });
  // They are alone again: the next launch is parked.
  v1::Command remove;
  remove.mutable_remove_group()->set_group_id(joined_.id);
  ASSERT_TRUE(node_.Call(0, remove).ok());
  const uint64_t next = PushEverywhere(Entry(node_.AddBarrierPlan(&group_)));
  for (auto& channel : channels_) channel->Reach(next);
  ASSERT_NO_FATAL_FAILURE(EndWell(next));
}

TEST_F(ParkingRevokeTest, BeforeAnotherGroupJoinsAndItsOwnStreamHasCome) {
  OfferedBefore([&] { joined_ = node_.AddGroup(101, {0}); }, true);
}

TEST_F(ParkingRevokeTest, BeforeAnotherChannelIsOpened) {
  std::unique_ptr<TestChannel> other;
  OfferedBefore([&] { other = node_.OpenChannel(0); });
}

TEST_F(ParkingRevokeTest, BeforeALaunchIsCaptured) {
  OfferedBefore([&] {
    LaunchEntry captured = Entry(node_.AddBarrierPlan(&group_));
    ASSERT_TRUE(channels_[0]->producer.Arm(&captured).ok());
  });
}

TEST_F(ParkingRevokeTest, BeforeALaunchByMessage) {
  uint64_t other = 0;
  const auto launch = [&](int gpu) {
    v1::Command direct;
    direct.mutable_launch()->set_launch_id(7);
    direct.mutable_launch()->set_session_id(1);
    direct.mutable_launch()->set_plan_id(other);
    direct.mutable_launch()->set_generation(1);
    ASSERT_TRUE(node_.Call(gpu, direct).ok());
  };
  OfferedBefore([&] {
    other = node_.AddBarrierPlan(&group_);
    launch(0);
  });
  launch(1);
  for (int gpu : {0, 1}) {
    v1::Message done;
    ASSERT_TRUE(node_.Await(
        gpu, [](const v1::Message& message) { return message.has_launch_done(); }, &done));
    EXPECT_EQ(done.launch_done().code(), 0) << done.launch_done().message();
  }
}

// The launch by message comes first at its plan, as it would without parking.
TEST_F(ParkingRevokeTest, BeforeALaunchByMessageOfTheSamePlan) {
  Open();
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  for (auto& channel : channels_) ASSERT_EQ(channel->Push(Entry(plan)), 1u);
  channels_[1]->Push(Entry(plan));
  for (int gpu : {0, 1}) ASSERT_TRUE(AwaitParked(gpu));
  for (auto& channel : channels_) channel->Reach(1);
  ASSERT_NO_FATAL_FAILURE(EndWell(1));
  ASSERT_TRUE(AwaitOffered(1, 2));
  for (int gpu : {1, 0}) {
    v1::Command direct;
    direct.mutable_launch()->set_launch_id(7);
    direct.mutable_launch()->set_session_id(1);
    direct.mutable_launch()->set_plan_id(plan);
    direct.mutable_launch()->set_generation(1);
    ASSERT_TRUE(node_.Call(gpu, direct).ok());
  }
  for (int gpu : {0, 1}) {
    v1::Message done;
    ASSERT_TRUE(node_.Await(
        gpu, [](const v1::Message& message) { return message.has_launch_done(); }, &done));
    EXPECT_EQ(done.launch_done().code(), 0) << done.launch_done().message();
  }
  channels_[0]->Push(Entry(plan));
  for (auto& channel : channels_) channel->Reach(2);
  ASSERT_NO_FATAL_FAILURE(EndWell(2));
}

TEST_F(ParkingRevokeTest, BeforeACommandThatWaitsForWhatIsParked) {
  Open();
  const uint64_t first = AddGatherPlan(), second = AddGatherPlan();
  PushEverywhere(Gather(first));
  ASSERT_EQ(channels_[0]->Push(Gather(second)), 2u);
  ASSERT_NO_FATAL_FAILURE(AwaitTurn(0));
  ASSERT_EQ(node_.Arrivals(group_).Offered(1, 0), 1u);
  v1::Command clear;
  clear.mutable_clear_memory()->set_segment_id(group_.segments[0]);
  const uint64_t held = node_.Send(0, clear).value();
  ASSERT_TRUE(node_.AwaitReceived(0));
  ASSERT_NO_FATAL_FAILURE(AwaitTurn(0));
  ASSERT_EQ(channels_[1]->Push(Gather(second)), 2u);
  ASSERT_NO_FATAL_FAILURE(AwaitTurn(1));
  EXPECT_EQ(Parks(), 1);
  for (auto& channel : channels_) channel->Reach(1);
  ASSERT_TRUE(node_.Await(
      0, [&](const v1::Message& message) { return message.has_ack() && message.ack().id() == held; }));
  for (auto& channel : channels_) channel->Reach(2);
  ASSERT_NO_FATAL_FAILURE(EndWell(2));
}

// An engine that is told of the plan only later has not read that the offer was taken back.
TEST_F(ParkingRevokeTest, BeforeThePeerHasThePlan) {
  Open();
  node_.Impersonate(1);
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  ASSERT_EQ(channels_[0]->Push(Entry(plan)), 1u);
  ASSERT_TRUE(AwaitOffered(0, 1));
  joined_ = node_.AddGroup(101, {0});
  EXPECT_NE(node_.Arrivals(group_).Offered(0, 0), 1u);
}

TEST_F(ParkingRevokeTest, NothingIsParkedWhileAnotherGroupIsThere) {
  Open();
  const uint64_t plans[] = {AddGatherPlan(), AddGatherPlan()};
  constexpr uint64_t kLaunches = 3000;
  std::atomic<int> running = 2;
  std::vector<std::thread> ranks;
  for (size_t rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      TestChannel& channel = *channels_[rank];
      uint64_t pushed = 0;
      for (uint64_t next = 1; next <= kLaunches; ++next) {
        // Rank 0 is ahead, so that its offers stand; rank 1 takes its time before it pushes, and before it
        // comes.
        const auto pause = [&] {
          for (int i = 0; rank == 1 && i < 30; ++i) std::this_thread::yield();
        };
        pause();
        while (pushed < std::min(next + 1 - rank, kLaunches)) channel.Push(Gather(plans[pushed++ % 2]));
        pause();
        channel.Reach(next);
        if (!channel.Wait(next)) break;
        EXPECT_TRUE(channel.producer.Outcome(next).status.ok())
            << channel.producer.Outcome(next).status.ToString();
      }
      --running;
    });
  }
  for (uint64_t round = 0; running > 0 && round < 16; ++round) {  // each takes memory
    const int gpu = static_cast<int>(round % 2);
    const TestGroup other = node_.AddGroup(200 + round, {gpu});
    const uint64_t from = node_.log().Head();
    AwaitTurn(gpu);
    EXPECT_EQ(Parks(from), 0) << "round " << round;
    v1::Command remove;
    remove.mutable_remove_group()->set_group_id(other.id);
    EXPECT_TRUE(node_.Call(gpu, remove).ok());
    AwaitTurn(gpu);
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GT(Parks(), 0);
}

}  // namespace
}  // namespace tandem::engine
