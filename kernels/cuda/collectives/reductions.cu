// Engines' kernels of reductions that are no sums.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/reductions.cuh"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

struct EngineReductions {
  template <typename Element>
  static ReductionKernelType Of() {
    return &RunPhases<Element, kMaxGroupRanks, false, NoTestHooks>;
  }
};

}  // namespace

ReductionKernelType ReductionKernel(DType type) { return ReductionKernelOf<EngineReductions>(type); }

Status ReductionKernelsLoad() {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kU8,
                     DType::kI32, DType::kI64}) {
    TANDEM_RETURN_IF_ERROR(LoadKernel("RunPhases", reinterpret_cast<const void*>(ReductionKernel(type))));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
