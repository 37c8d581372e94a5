// The kernels of phases for sums of every type and number of sources.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/phases.cuh"
#include "kernels/cuda/collectives/reductions.h"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {

Status PhaseKernelsLoad();

Status LaunchPhases(const PhasesLaunch& launch, CUstream_st* stream) {
  PhaseKernels<NoTestHooks>::Kernel kernel =
      Reduces(launch)
          ? ReductionKernel(static_cast<DType>(launch.type))
          : PhaseKernels<NoTestHooks>::Of(static_cast<DType>(launch.type), launch.sums, MostSources(launch));
  kernel<<<static_cast<unsigned>(launch.blocks), kCollectiveThreads, 0, stream>>>(launch);
  return LaunchStatus("RunPhases");
}

Status PhaseKernelsLoad() {
  TANDEM_RETURN_IF_ERROR(ReductionKernelsLoad());
  for (bool sums : {false, true}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kU8,
                       DType::kI32, DType::kI64}) {
      for (int most : {4, 8}) {
        TANDEM_RETURN_IF_ERROR(LoadKernel(
            "RunPhases", reinterpret_cast<const void*>(PhaseKernels<NoTestHooks>::Of(type, sums, most))));
      }
    }
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
