// File: kernel_group.h
//
// Ranks of a plan's one collective in one process, on real GPUs, its kernel launched directly: what an engine
// does between a rank program and a lane, with memory, words and launches in the test's hands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/planner/planner.h"
#include "kernels/backend.h"
#include "kernels/cuda/client_launch/client_plan.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {

struct KernelGroupOptions {
  int max_blocks = 0;    // 0: as planned
  int blocks = 0;        // these instead; 0: as planned
  int launches = 1;      // sets of operands
  int shift = 0;         // elements that every operand lies off its aligned place
  bool separate = true;  // one set of operands for each launch; else one for all
};

class KernelGroup {
 public:
  static constexpr size_t kGuardBytes = 256;

  // `requests` by rank; the plan must consist of one collective with a kernel. Takes the machine's memory
  // anew.
  KernelGroup(TestMachine* machine, std::vector<OpRequest> requests, const KernelGroupOptions& options,
              plan::GroupContext context);

  // OK, or why there is nothing to launch.
  const Status& status() const { return status_; }
  const plan::OperationPlan& plan() const { return plan_; }
  int world_size() const { return static_cast<int>(requests_.size()); }
  int blocks() const { return blocks_; }

  // The kernel's arguments of `rank` for launch number `launch_number` with the operands of set `launch`.
  CollectiveArgs Args(int rank, uint64_t launch_number, int launch) const;
  // Enqueues Args on the rank's lane.
  Status Launch(int rank, uint64_t launch_number, int launch);
  // Waits for all lanes; false after `seconds`.
  bool Finish(double seconds = 20);

  // The elements of a slot: a contiguous tensor of the set `launch`.
  void Set(int rank, int slot, int launch, const std::vector<std::byte>& bytes);
  std::vector<std::byte> Get(int rank, int slot, int launch);
  // False when bytes beside a slot's operands have changed.
  bool GuardsIntact();
  // The address of a slot on its own rank.
  std::byte* Data(int rank, int slot, int launch) const;
  size_t Bytes(int rank, int slot) const;

  CUstream stream(int rank) const { return lanes_[static_cast<size_t>(rank)]->stream(); }
  cuda::CudaLane& lane(int rank) { return *lanes_[static_cast<size_t>(rank)]; }
  Word* abort_word() const { return abort_word_; }
  // The workspaces of all ranks, and `rank`'s own signal area, as `rank` maps them.
  cuda::ClientHalves halves(int rank) const;
  uint64_t* own_words(int rank) const;
  TestMachine& machine() { return *machine_; }

 private:
  size_t Home(int rank, int slot) const;
  std::byte* Resolve(int viewer, const plan::Ref& ref, uint64_t launch_number, int launch) const;
  DeviceView Resolve(int viewer, const plan::View& view, uint64_t launch_number, int launch) const;
  size_t Set(int launch) const { return options_.separate ? static_cast<size_t>(launch) : 0; }

  TestMachine* machine_;
  std::vector<OpRequest> requests_;
  KernelGroupOptions options_;
  plan::OperationPlan plan_;
  Status status_;
  int blocks_ = 0;
  uint64_t half_bytes_ = 0;
  std::vector<SharedMemory> workspace_, bulk_, signals_;          // by rank
  std::vector<std::vector<std::vector<SharedMemory>>> operands_;  // by set, rank, slot
  std::vector<std::unique_ptr<Lane>> owned_lanes_;
  std::vector<cuda::CudaLane*> lanes_;
  std::vector<Word*> finished_;
  Word* abort_word_ = nullptr;
  uint64_t finishes_ = 0;
};

}  // namespace tandem::runtime
