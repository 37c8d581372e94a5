#include <cuda_runtime.h>

#include "kernels/cuda/collectives/client_kernels.h"
#include "kernels/cuda/collectives/phases.cuh"
#include "kernels/cuda/collectives/reductions.h"

namespace tandem::cuda {

const void* ClientPhasesKernel(const ClientPhasesLaunch& launch) {
  const PhasesLaunch& phases = launch.phases;
  if (Reduces(phases)) return ClientReductionKernel(static_cast<DType>(phases.type));
  return reinterpret_cast<const void*>(PhaseKernels<NoTestHooks, ClientPhasesLaunch>::Of(
      static_cast<DType>(phases.type), phases.sums, MostSources(phases)));
}

}  // namespace tandem::cuda
