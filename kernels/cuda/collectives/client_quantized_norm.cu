// The instances of the kernels of client_norm.cu that quantise. They are compiled beside the others.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/client_quantized_norm.h"
#include "kernels/cuda/collectives/dense_norm.cuh"
#include "kernels/cuda/collectives/dense_split_norm.cuh"

namespace tandem::cuda {

const void* QuantizedNormKernel(const ClientNormLaunch& launch) {
  const auto type = static_cast<DType>(launch.norm.type);
  return reinterpret_cast<const void*>(
      DenseNormKernels<NoTestHooks, true>::Of(type, launch.words, launch.sum.packets.world));
}

const void* QuantizedSplitNormKernel(const ClientNormLaunch& launch) {
  const auto type = static_cast<DType>(launch.norm.type);
  return reinterpret_cast<const void*>(
      DenseSplitNormKernels<NoTestHooks, true>::Of(type, launch.sum.packets.world));
}

}  // namespace tandem::cuda
