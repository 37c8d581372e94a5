#include "runtime/executor/tests/group_harness.h"

#include <chrono>
#include <thread>

namespace tandem::runtime {

GroupHarness::GroupHarness(const HarnessOptions& options) : options_(options), machine_(SharedMachine()) {
  if (machine_ == nullptr) {
    own_machine_ = MakeHostMachine({.world_size = options.world_size,
                                    .hardware_queues = options.hardware_queues,
                                    .visibility_delay_us = options.visibility_delay_us,
                                    .seed = options.seed});
    machine_ = own_machine_.get();
  }
  machine_->Reset();
  for (int rank = 0; rank < options.world_size; ++rank) {
    workspace_.push_back(machine_->Allocate(rank, 2 * options.workspace_bytes));
    bulk_.push_back(machine_->Allocate(rank, options.bulk_bytes));
    signals_.push_back(machine_->Allocate(rank, plan::kSignalAreaBytes));
    finished_.push_back(machine_->AllocateWord());
    std::vector<Lane*> lanes;
    lanes_.emplace_back();
    for (int lane = 0; lane < options.lanes; ++lane) {
      lanes_.back().push_back(std::move(*backend(rank).MakeLane(1)));
      lanes.push_back(lanes_.back().back().get());
      lanes.back()->HoldWords();  // as an engine's do
    }
    executors_.push_back(std::make_unique<Executor>(&backend(rank), lanes));
  }
}

GroupHarness::~GroupHarness() {
  // Blocked lanes use what is above: their machine ends first.
  own_machine_.reset();
}

Status GroupHarness::Launch(int rank, CompiledProgram& program, uint64_t launch_number,
                            const std::vector<SlotAddress>& slots, std::vector<StepEvents> step_events) {
  LaunchContext context;
  context.launch_number = launch_number;
  for (int r = 0; r < options_.world_size; ++r) {
    auto index = static_cast<size_t>(r);
    auto viewer = static_cast<size_t>(rank);
    context.workspace[index] = workspace_[index].at[viewer] + (launch_number & 1) * options_.workspace_bytes;
    context.bulk[index] = bulk_[index].at[viewer];
    context.signals[index] = reinterpret_cast<Word*>(signals_[index].at[viewer]);
  }
  context.slots = slots;
  context.communicator = machine_->GetCommunicator(rank, options_.world_size);
  context.step_events = step_events;
  Status status = executors_[static_cast<size_t>(rank)]->Enqueue(program, context);
  Status flushed = lane(rank, 0).FlushWords();
  return status.ok() ? flushed : status;
}

bool GroupHarness::Finish() {
  ++finishes_;
  for (size_t rank = 0; rank < lanes_.size(); ++rank) {
    Lane& lane = *lanes_[rank][0];
    if (!lane.WriteWord(finished_[rank], finishes_).ok() || !lane.FlushWords().ok()) return false;
  }
  auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (Word* word : finished_) {
    while (word->load(std::memory_order_acquire) != finishes_) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

}  // namespace tandem::runtime
