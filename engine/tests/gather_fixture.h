// File: gather_fixture.h
//
// `GatherTest`: engines with one group, a channel a rank, and a plan that shows what was copied and when.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/tests/engine_node.h"

namespace tandem::engine {

constexpr int64_t kGathered = 256;  // floats of each rank that AddGatherPlan's plan gathers

class GatherTest : public ::testing::Test {
 protected:
  explicit GatherTest(int world = 2, int hardware_queues = 8, const EngineNode::BackendWrapper& wrap = {},
                      const TurnLimits& turn_limits = {})
      : node_(world, hardware_queues, wrap, turn_limits) {
    for (int gpu = 0; gpu < world; ++gpu) gpus_.push_back(gpu);
  }

  void Open(uint64_t deadline_ms = 60000) {
    group_ = node_.AddGroup(100, gpus_, deadline_ms);
    for (int gpu : gpus_) channels_.push_back(node_.OpenChannel(gpu));
  }

  float* Data(int rank) { return reinterpret_cast<float*>(node_.Data(group_, rank)); }

  // Each rank copies its kGathered floats at the slot's begin into all ranks' slots, behind them, in rank
  // order. Reads and writes peers' memory, and its own: what must not happen before its rank's stream has
  // come.
  uint64_t AddGatherPlan() {
    const int world = node_.gpus();
    std::vector<plan::RankProgram> programs(static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      plan::RankProgram& program = programs[static_cast<size_t>(rank)];
      program.rank = rank;
      program.world_size = world;
      program.signal_count = 1;
      auto add = [&](auto work) {
        plan::Step step;
        step.work = std::move(work);
        program.steps.push_back(std::move(step));
      };
      for (int peer = 0; peer < world; ++peer) {
        plan::View from{.ref = {plan::Space::kOperand, static_cast<uint8_t>(rank), 0, 0},
                        .dtype = DType::kF32,
                        .extent = {kGathered},
                        .stride = {1}};
        plan::View to = from;
        to.ref.rank = static_cast<uint8_t>(peer);
        to.ref.offset = static_cast<uint64_t>(rank + 1) * kGathered * 4;
        add(plan::CopyStep{from, to, true});
        if (peer != rank) add(plan::SignalStep{static_cast<uint8_t>(peer), 0});
      }
      for (int peer = 0; peer < world; ++peer) {
        if (peer != rank) add(plan::WaitStep{static_cast<uint8_t>(peer), 0});
      }
    }
    v1::PlanSlot slot;
    slot.set_span_bytes(static_cast<uint64_t>(world + 1) * kGathered * 4);
    slot.set_alignment(4);
    slot.set_symmetric(true);
    slot.set_alias_of(-1);
    return node_.AddPlan(&group_, programs, {slot});
  }

  LaunchEntry Gather(uint64_t plan) { return Entry(plan, {{group_.registration, 0}}); }

  // All launch `plan` once more, and it goes well.
  void LaunchWell(uint64_t plan) {
    std::vector<uint64_t> sequences;
    for (auto& channel : channels_) sequences.push_back(channel->Launch(Gather(plan)));
    for (size_t rank = 0; rank < channels_.size(); ++rank) {
      ASSERT_TRUE(channels_[rank]->Wait(sequences[rank])) << rank;
      const LaunchOutcome outcome = channels_[rank]->producer.Outcome(sequences[rank]);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    }
  }

  EngineNode node_;
  std::vector<int> gpus_;
  TestGroup group_;
  std::vector<std::unique_ptr<TestChannel>> channels_;
};

}  // namespace tandem::engine
