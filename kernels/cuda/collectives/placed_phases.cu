#include <cuda_runtime.h>

#include "kernels/cuda/collectives/phases.cuh"
#include "kernels/cuda/collectives/placed_kernels.h"

namespace tandem::cuda {

const void* PlacedPhasesKernel(const PlacedPhasesLaunch& launch) {
  const PhasesLaunch& phases = launch.phases;
  return reinterpret_cast<const void*>(PhaseKernels<NoProbe, PlacedPhasesLaunch>::Of(
      static_cast<DType>(phases.type), phases.sums, MostSources(phases)));
}

}  // namespace tandem::cuda
