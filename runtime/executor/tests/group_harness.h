// File: group_harness.h
//
// A group of ranks in one process for the executor's tests: a GPU, an executor and a communicator a rank, and
// the memory that engines would share. Launches are enqueued back to back, as an engine enqueues them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/executor/executor.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {

struct HarnessOptions {
  int world_size = 1;
  int lanes = 1;
  int hardware_queues = 2;  // of emulated GPUs, as the next and the seed
  int visibility_delay_us = 0;
  uint64_t workspace_bytes = 0;  // of one half
  uint64_t bulk_bytes = 0;
  uint64_t seed = 1;
};

class GroupHarness {
 public:
  // On SharedMachine(), or on separate emulated GPUs.
  explicit GroupHarness(const HarnessOptions& options);
  // Ends lanes of emulated GPUs that are blocked.
  ~GroupHarness();

  // Enqueues launch `launch_number` on one rank. slots[s] as LaunchContext has them.
  Status Launch(int rank, CompiledProgram& program, uint64_t launch_number,
                const std::vector<SlotAddress>& slots, std::vector<StepEvents> step_events = {});
  // Waits until lane 0 of every rank has done all that was enqueued; false after a minute.
  bool Finish();
  TestMachine& machine() { return *machine_; }
  Backend& backend(int rank) { return machine_->backend(rank); }
  Lane& lane(int rank, int lane) { return *lanes_[static_cast<size_t>(rank)][static_cast<size_t>(lane)]; }

 private:
  HarnessOptions options_;
  std::unique_ptr<TestMachine> own_machine_;
  TestMachine* machine_;
  std::vector<SharedMemory> workspace_, bulk_, signals_;  // by rank
  std::vector<Word*> finished_;
  uint64_t finishes_ = 0;
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace tandem::runtime
