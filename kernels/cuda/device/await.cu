// A stream's wait for a word of the user's own, and for a time.
#include <cuda_runtime.h>

#include "kernels/cuda/device/collective.h"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/device/sync.cuh"

namespace tandem::cuda {

Status AwaitKernelLoad();

namespace {

__global__ void AwaitWord32(const uint32_t* word, const WaitLimits limits) {
  WaitBudget wait_budget(limits);
  while (LoadAcquire(word) == 0 && wait_budget.Continue()) __nanosleep(50);
}

__global__ void Pause(uint64_t ns) {
  const uint64_t end = GlobalTimerNs() + ns;
  while (GlobalTimerNs() < end) __nanosleep(500);
}

}  // namespace

Status LaunchAwaitWord32(const uint32_t* word, const WaitLimits& limits, CUstream_st* stream) {
  AwaitWord32<<<1, 1, 0, stream>>>(word, limits);
  return LaunchStatus("AwaitWord32");
}

Status LaunchPause(uint64_t ns, CUstream_st* stream) {
  Pause<<<1, 1, 0, stream>>>(ns);
  return LaunchStatus("Pause");
}

Status AwaitKernelLoad() {
  TANDEM_RETURN_IF_ERROR(LoadKernel("AwaitWord32", reinterpret_cast<const void*>(&AwaitWord32)));
  return LoadKernel("Pause", reinterpret_cast<const void*>(&Pause));
}

}  // namespace tandem::cuda
