#include <cuda_runtime.h>

#include "kernels/cuda/collectives/packets.cuh"
#include "kernels/cuda/collectives/placed_kernels.h"

namespace tandem::cuda {

const void* PlacedPacketsKernel(const PlacedPacketsLaunch& launch) {
  const PacketsLaunch& packets = launch.packets;
  return reinterpret_cast<const void*>(PacketKernels<NoProbe, PlacedPacketsLaunch>::Of(
      static_cast<DType>(packets.type), packets.shape, packets.world));
}

}  // namespace tandem::cuda
