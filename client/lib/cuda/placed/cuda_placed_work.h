// File: cuda_placed_work.h
//
// `CudaPlacedWork`: a rank program that one kernel runs on the caller's stream, with the parameters of the
// launches that were made lately.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/lib/placed/placed_queue.h"
#include "drivers/cuda/cuda_driver.h"
#include "engine/executor/executor.h"
#include "kernels/cuda/collectives/placed_plan.h"

namespace tandem::client {

// Thread rule: one thread at a time.
class CudaPlacedWork final : public PlacedWork {
 public:
  // UNIMPLEMENTED: the program is not one kernel that meets the peers.
  static Result<std::shared_ptr<CudaPlacedWork>> Make(const plan::RankProgram& program,
                                                      std::vector<engine::SlotLimit> slots,
                                                      const PlacedMemory& memory);

  // Loads the kernel into the current context. Addresses of operands play no part in which kernel it is.
  Status LoadKernel();
  // The parameters for these operands, without their frame; good until the next call. INVALID_ARGUMENT: an
  // operand is no memory that the GPU reaches. `driver`: asked once for each new set of operands.
  Result<cuda::PlacedKernelLaunch*> For(std::span<const engine::SlotAddress> slots, cuda::CudaDriver& driver);

 private:
  CudaPlacedWork() = default;
  Result<cuda::PlacedKernelLaunch> Build(std::span<const engine::SlotAddress> slots);
  Status CheckReachable(std::span<const engine::SlotAddress> slots, cuda::CudaDriver& driver) const;

  // Operands that a launch was made with, and its parameters. A model's layers may share one plan.
  struct Kept {
    std::vector<engine::SlotAddress> slots;
    uint64_t used = 0;
    cuda::PlacedKernelLaunch launch;
  };

  PlacedMemory memory_;
  std::vector<uint64_t> slot_bytes_;
  std::unique_ptr<engine::CompiledProgram> program_;
  std::vector<Kept> kept_;
  uint64_t uses_ = 0;
};

}  // namespace tandem::client
