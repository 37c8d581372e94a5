// Parking: launches on the lanes before their ranks' streams have come. Every ending must be the one without
// parking, and nothing may happen on a rank that has not arrived.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "engine/tests/parking_fixture.h"

namespace tandem::engine {
namespace {

class ParkingWorldTest : public ParkingTest, public ::testing::WithParamInterface<std::pair<int, int>> {
 protected:
  ParkingWorldTest() : ParkingTest(GetParam().first, GetParam().second) {}
};

TEST_P(ParkingWorldTest, RunsWhenTheLastStreamHasComeAndNotBefore) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const int world = node_.gpus();
  for (int round = 1; round <= 5; ++round) {
    const uint64_t sequence = PushEverywhere(Gather(plan));
    for (int rank = 0; rank < world; ++rank) {
      // Written after the launch is on the lanes, before the own stream reaches it.
      for (int64_t i = 0; i < kGathered; ++i)
        Data(rank)[i] = static_cast<float>(1000 * round + 10 * rank) + static_cast<float>(i);
      if (rank + 1 < world) channels_[static_cast<size_t>(rank)]->Reach(sequence);
    }
    for (auto& channel : channels_) EXPECT_LT(channel->producer.Done(), sequence);
    EXPECT_NE(Data(0)[world * kGathered], Data(world - 1)[0])
        << "copied before the last rank's stream had come";
    channels_.back()->Reach(sequence);
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_TRUE(channels_[static_cast<size_t>(rank)]->Wait(sequence));
      const LaunchOutcome outcome = channels_[static_cast<size_t>(rank)]->producer.Outcome(sequence);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      for (int peer = 0; peer < world; ++peer) {
        EXPECT_EQ(std::memcmp(Data(rank) + (peer + 1) * kGathered, Data(peer), kGathered * 4), 0)
            << rank << " of " << peer;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, ParkingWorldTest,
                         ::testing::Values(std::pair(2, 8), std::pair(2, 1), std::pair(4, 8),
                                           std::pair(8, 2)));

TEST_F(ParkingTest, AnEmptyPlanIsParkedLikeOthers) {
  Open();
  const uint64_t plan = node_.AddEmptyPlan(&group_);
  for (int round = 0; round < 3; ++round) {
    const uint64_t sequence = PushEverywhere(Entry(plan));
    channels_[0]->Reach(sequence);
    EXPECT_LT(channels_[0]->producer.Done(), sequence);
    channels_[1]->Reach(sequence);
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(sequence));
      EXPECT_TRUE(channel->producer.Outcome(sequence).status.ok());
    }
  }
}

TEST_F(ParkingTest, TheNextLaunchOfAChannelIsParkedBehindTheFirst) {
  Open();
  const uint64_t first = AddGatherPlan(), second = AddGatherPlan(), third = node_.AddBarrierPlan(&group_);
  PushEverywhere(Gather(first), 1);
  PushEverywhere(Gather(second), 2);
  // No more than two programs of a GPU have entered the log and not ended.
  for (auto& channel : channels_) ASSERT_EQ(channel->Push(Entry(third)), 3u);
  for (uint64_t sequence : {1, 2, 3}) {
    for (auto& channel : channels_) {
      EXPECT_LT(channel->producer.Done(), sequence);
      channel->Reach(sequence);
    }
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(sequence));
      EXPECT_TRUE(channel->producer.Outcome(sequence).status.ok());
    }
  }
}

TEST_F(ParkingTest, DifferentTagsAreNotParkedAndFailWhenTheyArrive) {
  Open();
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  for (size_t rank : {0, 1}) {
    LaunchEntry entry = Entry(plan);
    entry.tag_digest = 7 + rank;
    ASSERT_EQ(channels_[rank]->Push(entry), 1u);
  }
  for (auto& channel : channels_) channel->Reach(1);
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(1));
    EXPECT_EQ(channel->producer.Outcome(1).status.code(), Code::kInvalidArgument);
  }
  uint64_t next = PushEverywhere(Entry(plan));
  for (auto& channel : channels_) channel->Reach(next);
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(next));
    EXPECT_TRUE(channel->producer.Outcome(next).status.ok());
  }
}

TEST_F(ParkingTest, NothingIsParkedBesideAnotherGroupAChannelOrACapturedLaunch) {
  Open();
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  uint64_t sequence = PushEverywhere(Entry(plan));
  // The one that is parked is waited for by all others.
  TestGroup joined = node_.AddGroup(101, {0, 1});
  for (auto& channel : channels_) channel->Reach(sequence);
  for (auto& channel : channels_) ASSERT_TRUE(channel->Wait(sequence));
  const uint64_t theirs = node_.AddEmptyPlan(&joined);
  auto not_parked = [&](const char* why) {
    for (auto& channel : channels_) sequence = channel->Push(Entry(plan));
    channels_[0]->Reach(sequence);
    for (int gpu : {0, 1}) {
      ASSERT_TRUE(node_.AwaitQueued(gpu, gpu == 0 ? 1 : 0))
          << why;  // rank 0's has arrived, rank 1's lanes are free
    }
    channels_[1]->Reach(sequence);
    for (auto& channel : channels_) {
      ASSERT_TRUE(channel->Wait(sequence));
      ASSERT_TRUE(channel->producer.Outcome(sequence).status.ok());
    }
  };
  ASSERT_NO_FATAL_FAILURE(not_parked("another group"));
  for (auto& channel : channels_) sequence = channel->Launch(Entry(theirs));
  for (auto& channel : channels_) ASSERT_TRUE(channel->Wait(sequence));
  for (int gpu : {0, 1}) {
    v1::Command remove;
    remove.mutable_remove_group()->set_group_id(joined.id);
    ASSERT_TRUE(node_.Call(gpu, remove).ok());
  }
  auto second = node_.OpenChannel(1);
  ASSERT_NO_FATAL_FAILURE(not_parked("two channels"));
  v1::Command close;
  close.mutable_close_channel()->set_channel_id(second->id);
  ASSERT_TRUE(node_.Call(1, close).ok());
  LaunchEntry captured = Entry(plan);
  Result<int> slot = channels_[0]->producer.Arm(&captured);
  ASSERT_TRUE(slot.ok());
  ASSERT_NO_FATAL_FAILURE(not_parked("a captured launch"));
  ASSERT_TRUE(channels_[0]->producer.Disarm(*slot).ok());
  sequence = PushEverywhere(Entry(plan));
  for (auto& channel : channels_) channel->Reach(sequence);
  for (auto& channel : channels_) ASSERT_TRUE(channel->Wait(sequence));
}

TEST_F(ParkingTest, APlanIsAddedOnlyWhenNoParkedLaunchWaits) {
  Open();
  const uint64_t plan = node_.AddBarrierPlan(&group_);
  const uint64_t sequence = PushEverywhere(Entry(plan));
  std::atomic<bool> reached = false;
  std::thread streams([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // beside the command, most likely
    reached = true;
    for (auto& channel : channels_) channel->Reach(sequence);
  });
  const uint64_t other = node_.AddBarrierPlan(&group_);
  EXPECT_TRUE(reached);
  streams.join();
  for (auto& channel : channels_) channel->Launch(Entry(other));
  for (auto& channel : channels_) ASSERT_TRUE(channel->Wait(sequence + 1));
}

// At it no rank has arrived, so that no deadline of its own runs.
TEST_F(ParkingTest, AnotherGroupsPlanDoesNotWaitForAParkedLaunchThatNobodyReaches) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  TestGroup joined = node_.AddGroup(101, {0, 1});
  const uint64_t theirs = node_.AddBarrierPlan(&joined);
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    EXPECT_EQ(channel->producer.Outcome(sequence).status.code(), Code::kDeadlineExceeded);
    channel->Reach(sequence);  // it comes after all
  }
  for (auto& channel : channels_) channel->Launch(Entry(theirs));
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence + 1));
    EXPECT_TRUE(channel->producer.Outcome(sequence + 1).status.ok());
  }
  ASSERT_NO_FATAL_FAILURE(LaunchWell(plan));
}

TEST_F(ParkingTest, AGroupsOwnPlanEndsNoLaunchOfItsOwn) {
  Open();
  const uint64_t plan = AddGatherPlan();
  const uint64_t sequence = PushEverywhere(Gather(plan));
  std::thread streams([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than others' plans would wait
    for (auto& channel : channels_) channel->Reach(sequence);
  });
  node_.AddBarrierPlan(&group_);
  streams.join();
  for (auto& channel : channels_) {
    ASSERT_TRUE(channel->Wait(sequence));
    EXPECT_TRUE(channel->producer.Outcome(sequence).status.ok());
  }
}

// Streams at random paces, two plans in turn, deadlines that sometimes pass.
TEST_F(ParkingTest, ManyLaunchesOfStreamsAtRandomPaces) {
  Open();
  const uint64_t plans[] = {AddGatherPlan(), AddGatherPlan()};
  constexpr uint64_t kLaunches = 3000;
  std::vector<std::thread> ranks;
  for (size_t rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      std::mt19937 random(static_cast<unsigned>(rank + 1));
      TestChannel& channel = *channels_[rank];
      uint64_t pushed = 0, reached = 0;
      while (reached < kLaunches) {
        // Ahead by up to eight, as clients are.
        while (pushed < kLaunches && pushed < reached + 1 + random() % 8) {
          LaunchEntry entry = Gather(plans[pushed % 2]);
          // The same launches on both ranks may end by their deadline, on both.
          if (pushed % 97 == 13) entry.deadline_ns = 200'000;
          if (channel.Push(entry) == 0) break;
          ++pushed;
        }
        if (reached == pushed) continue;
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        channel.Reach(++reached);
        ASSERT_TRUE(channel.Wait(reached));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  int parked = 0;
  LogEntry entry;
  for (uint64_t position = 0; node_.log().Read(position, &entry) == LogRead::kEntry; ++position) {
    parked += entry.kind == LogKind::kPark;
  }
  EXPECT_GT(parked, 50) << "of " << kLaunches;
  for (uint64_t sequence = kLaunches - 50; sequence <= kLaunches; ++sequence) {
    const LaunchOutcome mine = channels_[0]->producer.Outcome(sequence),
                        theirs = channels_[1]->producer.Outcome(sequence);
    EXPECT_EQ(mine.status.code(), theirs.status.code()) << sequence;
    EXPECT_TRUE(mine.status.ok() || mine.status.code() == Code::kDeadlineExceeded) << mine.status.ToString();
  }
}

}  // namespace
}  // namespace tandem::engine
