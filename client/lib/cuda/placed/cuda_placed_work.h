// File: cuda_placed_work.h
//
// `CudaPlacedWork`: a rank program that runs on the caller's stream as one kernel that meets the peers, with
// products, copies, sums and norms of the rank's own memory before and behind it. It keeps the parameters of
// the launches that were made lately.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "client/lib/cuda/placed/placed_fused_state.h"
#include "client/lib/cuda/placed/placed_staging.h"
#include "client/lib/placed/placed_queue.h"
#include "drivers/cuda/cuda_driver.h"
#include "engine/executor/executor.h"
#include "kernels/cuda/collectives/placed_plan.h"
#include "kernels/cuda/matmul/local_work.h"

namespace tandem::client {

// The work of one launch, in order. One of them is the kernel that meets the peers.
using CudaPlacedStep =
    std::variant<cuda::PlacedKernelLaunch, MatmulArgs, CopyArgs, ReduceArgs, NormArgs, StagingCopy>;

// Thread rule: one thread at a time.
class CudaPlacedWork final : public PlacedWork {
 public:
  // UNIMPLEMENTED: the program is not one kernel for a collective with local work around it.
  static Result<std::shared_ptr<CudaPlacedWork>> Make(const plan::RankProgram& program,
                                                      std::vector<engine::SlotLimit> slots,
                                                      const PlacedMemory& memory);

  // Loads the kernels into the current context, and lets cuBLASLt's algorithms be chosen. Addresses of
  // operands play no part in which kernels they are. `local`: asked for if there is local work.
  using GetLocalWork = std::function<Result<std::shared_ptr<cuda::LocalWork>>()>;
  // `fused`: asked for if the kernel is a fused matmul of many rows.
  using GetFusedState = std::function<Result<std::shared_ptr<PlacedFusedState>>()>;
  Status Load(const GetLocalWork& local, const GetFusedState& fused);
  // The parameters for these operands, without the kernel's frame; good until the next call.
  // INVALID_ARGUMENT: an operand is no memory that the GPU reaches. `driver`: asked once for each new set of
  // operands.
  Result<std::span<CudaPlacedStep>> For(std::span<const engine::SlotAddress> slots, cuda::CudaDriver& driver);
  // Puts a launch onto `stream`, whose context is current. On an error a part of the local work may be there.
  Status Enqueue(std::span<CudaPlacedStep> steps, const cuda::LaunchFrame& frame, CUstream stream);

 private:
  CudaPlacedWork() = default;
  std::array<Word*, plan::kMaxWorldSize> FusedWords() const;
  cuda::PlacedFusedPlaces FusedPlaces() const;
  Result<std::vector<CudaPlacedStep>> Build(std::span<const engine::SlotAddress> slots);
  // The same, with norms merged where that goes, or with copies of operands that the kernels cannot address.
  Result<std::vector<CudaPlacedStep>> BuildStaged(std::span<const engine::SlotAddress> slots);
  Status CheckReachable(std::span<const engine::SlotAddress> slots, cuda::CudaDriver& driver) const;

  // Operands that a launch was made with, and its parameters. A model's layers may share one plan.
  struct Kept {
    std::vector<engine::SlotAddress> slots;
    uint64_t used = 0;
    std::vector<CudaPlacedStep> steps;
  };

  PlacedMemory memory_;
  std::vector<uint64_t> slot_bytes_;
  std::unique_ptr<engine::CompiledProgram> program_;
  std::shared_ptr<cuda::LocalWork> local_;  // null: there is none
  bool is_fused_ = false;
  std::unique_ptr<PlacedStaging> staging_;   // null: not of a fused matmul
  std::shared_ptr<PlacedFusedState> fused_;  // null until Load, or not of a fused matmul
  std::vector<Kept> kept_;
  uint64_t uses_ = 0;
};

}  // namespace tandem::client
