#include "daemon/engine/executor/tests/group_harness.h"

#include <chrono>
#include <thread>

namespace tandem::engine {

GroupHarness::GroupHarness(const HarnessOptions& options) : options_(options) {
  constexpr size_t kScratchBytes = 64 << 10;
  CommunicatorOptions communicator;
  communicator.world_size = options.world_size;
  communicator.scratch_bytes = kScratchBytes;
  communicator.abort_word = &abort_word_;
  for (int rank = 0; rank < options.world_size; ++rank) {
    workspace_.emplace_back(2 * options.workspace_bytes);
    bulk_.emplace_back(options.bulk_bytes);
    signals_.emplace_back(kSignalAreaBytes);
    scratch_.emplace_back(kScratchBytes);
    communicator.scratch.push_back(scratch_.back().data());
    finished_.push_back(std::make_unique<Word>(0));
  }
  for (int rank = 0; rank < options.world_size; ++rank) {
    backends_.push_back(std::move(*MakeHostBackend({.gpu = rank,
                                                    .hardware_queues = options.hardware_queues,
                                                    .visibility_delay_us = options.visibility_delay_us,
                                                    .seed = options.seed})));
    communicator.rank = rank;
    communicators_.push_back(std::move(*backends_.back()->MakeCommunicator(communicator)));
    std::vector<Lane*> lanes;
    lanes_.emplace_back();
    for (int lane = 0; lane < options.lanes; ++lane) {
      lanes_.back().push_back(std::move(*backends_.back()->MakeLane(1)));
      lanes.push_back(lanes_.back().back().get());
    }
    executors_.push_back(std::make_unique<Executor>(backends_.back().get(), lanes));
  }
}

GroupHarness::~GroupHarness() {
  // Blocked lanes and collectives use the memory above: they end first.
  backends_.clear();
}

Status GroupHarness::Launch(int rank, CompiledProgram& program, uint64_t epoch, const std::vector<SlotAddress>& slots,
                            std::vector<StepEvents> step_events) {
  LaunchContext context;
  context.epoch = epoch;
  for (int r = 0; r < options_.world_size; ++r) {
    auto index = static_cast<size_t>(r);
    context.workspace[index] = workspace_[index].data() + (epoch & 1) * options_.workspace_bytes;
    context.bulk[index] = bulk_[index].data();
    context.signals[index] = reinterpret_cast<Word*>(signals_[index].data());
  }
  context.slots = slots;
  context.communicator = communicators_[static_cast<size_t>(rank)].get();
  context.step_events = step_events;
  return executors_[static_cast<size_t>(rank)]->Enqueue(program, context);
}

bool GroupHarness::Finish() {
  ++finishes_;
  for (size_t rank = 0; rank < lanes_.size(); ++rank) {
    if (!lanes_[rank][0]->WriteWord(finished_[rank].get(), finishes_).ok()) return false;
  }
  auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (auto& word : finished_) {
    while (word->load(std::memory_order_acquire) != finishes_) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

}  // namespace tandem::engine
