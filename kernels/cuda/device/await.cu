// The wait of a stream for a word of the user's own.
#include <cuda_runtime.h>

#include "kernels/cuda/device/collective.h"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/device/sync.cuh"

namespace tandem::cuda {

Status AwaitKernelLoad();

namespace {

__global__ void AwaitWord32(const uint32_t* word, const WaitLimits limits) {
  Patience patience(limits);
  while (LoadAcquire(word) == 0 && patience.Continue()) __nanosleep(50);
}

}  // namespace

Status LaunchAwaitWord32(const uint32_t* word, const WaitLimits& limits, CUstream_st* stream) {
  AwaitWord32<<<1, 1, 0, stream>>>(word, limits);
  return LaunchStatus("AwaitWord32");
}

Status AwaitKernelLoad() { return LoadKernel("AwaitWord32", reinterpret_cast<const void*>(&AwaitWord32)); }

}  // namespace tandem::cuda
