#include <cuda_runtime.h>

#include "kernels/cuda/collectives/client_kernels.h"
#include "kernels/cuda/collectives/packets.cuh"

namespace tandem::cuda {

const void* ClientPacketsKernel(const ClientPacketsLaunch& launch) {
  const PacketsLaunch& packets = launch.packets;
  return reinterpret_cast<const void*>(PacketKernels<NoTestHooks, ClientPacketsLaunch>::Of(
      static_cast<DType>(packets.type), packets.shape, packets.world));
}

}  // namespace tandem::cuda
