#include <cuda_runtime.h>

#include "kernels/cuda/collectives/dense_packets.cuh"
#include "kernels/cuda/collectives/placed_kernels.h"

namespace tandem::cuda {

const void* PlacedDenseKernel(const PlacedPacketsLaunch& launch) {
  const PacketsLaunch& packets = launch.packets;
  return reinterpret_cast<const void*>(
      DenseKernels<NoProbe>::Of(static_cast<DType>(packets.type), packets.shape, packets.world));
}

}  // namespace tandem::cuda
