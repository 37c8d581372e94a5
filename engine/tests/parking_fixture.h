// File: parking_fixture.h
//
// `ParkingTest`: a GatherTest whose group parks its launches.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "engine/tests/gather_fixture.h"

namespace tandem::engine {

class ParkingTest : public GatherTest {
 protected:
  explicit ParkingTest(int world = 2, int hardware_queues = 8) : GatherTest(world, hardware_queues) {
    node_.EnableParking();
  }

  // Until so many launches are parked on `gpu` and wait there for ranks.
  bool AwaitParked(int gpu, int launches = 1) {
    return node_.AwaitQueue(gpu, [launches](const v1::Queue& queue) {
      return launches ==
             std::count_if(queue.items().begin(), queue.items().end(),
                           [](const v1::QueueItem& item) { return item.parked() && !item.started(); });
    });
  }

  // Until `rank` has offered launch `count` of the group's first plan.
  bool AwaitOffered(int rank, uint64_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (node_.Arrivals(group_).Offered(0, rank) != count && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return node_.Arrivals(group_).Offered(0, rank) == count;
  }

  // All ranks push `entry`; true once it is parked everywhere. Sequences are alike on all channels.
  uint64_t PushEverywhere(const LaunchEntry& entry, int parked = 1) {
    uint64_t sequence = 0;
    for (auto& channel : channels_) sequence = channel->Push(entry);
    for (int gpu = 0; gpu < node_.gpus(); ++gpu) EXPECT_TRUE(AwaitParked(gpu, parked)) << "GPU " << gpu;
    return sequence;
  }
};

}  // namespace tandem::engine
