#include <cuda_runtime.h>

#include "kernels/cuda/collectives/client_kernels.h"
#include "kernels/cuda/collectives/phases.cuh"

namespace tandem::cuda {

const void* ClientPhasesKernel(const ClientPhasesLaunch& launch) {
  const PhasesLaunch& phases = launch.phases;
  return reinterpret_cast<const void*>(PhaseKernels<NoProbe, ClientPhasesLaunch>::Of(
      static_cast<DType>(phases.type), phases.sums, MostSources(phases)));
}

}  // namespace tandem::cuda
