// File: group_harness.h
//
// A group of ranks in one process for the executor's tests: an emulated GPU, an executor and a communicator a rank, and
// the memory that engines would share. Launches are enqueued back to back, as an engine enqueues them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/engine/executor/executor.h"
#include "kernels/host/host_backend.h"

namespace tandem::engine {

// Zeroed memory aligned to 256 bytes.
class AlignedMemory {
 public:
  explicit AlignedMemory(size_t bytes) : storage_(bytes + 256) {
    auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = reinterpret_cast<std::byte*>((address + 255) / 256 * 256);
  }
  std::byte* data() const { return data_; }

 private:
  std::vector<uint8_t> storage_;
  std::byte* data_;
};

struct HarnessOptions {
  int world_size = 1;
  int lanes = 1;
  int hardware_queues = 2;
  int visibility_delay_us = 0;
  uint64_t workspace_bytes = 0;  // of one half
  uint64_t bulk_bytes = 0;
  uint64_t seed = 1;
};

class GroupHarness {
 public:
  explicit GroupHarness(const HarnessOptions& options);
  // Ends lanes that are blocked.
  ~GroupHarness();

  // Enqueues launch `epoch` on one rank. slots[s] as LaunchContext has them.
  Status Launch(int rank, CompiledProgram& program, uint64_t epoch, const std::vector<SlotAddress>& slots,
                std::vector<StepEvents> step_events = {});
  // Waits until lane 0 of every rank has done all that was enqueued; false after a minute.
  bool Finish();
  Backend& backend(int rank) { return *backends_[static_cast<size_t>(rank)]; }
  Lane& lane(int rank, int lane) { return *lanes_[static_cast<size_t>(rank)][static_cast<size_t>(lane)]; }

 private:
  HarnessOptions options_;
  std::vector<AlignedMemory> workspace_, bulk_, signals_, scratch_;  // by rank
  std::vector<std::unique_ptr<Word>> finished_;
  uint64_t finishes_ = 0;
  Word abort_word_{0};
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::vector<std::unique_ptr<Lane>>> lanes_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

}  // namespace tandem::engine
