#include "kernels/cuda/device/dependent_launch.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

// Before sm_90 a launch with the attribute is not allowed. The runtime is asked once for each GPU.
bool TakesDependents() {
  enum : int { kUnknown, kNo, kYes };
  constexpr size_t kMaxGpus = 64;
  static std::array<std::atomic<int>, kMaxGpus> known;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || static_cast<size_t>(device) >= kMaxGpus)
    return false;
  std::atomic<int>& answer = known[static_cast<size_t>(device)];
  int value = answer.load(std::memory_order_relaxed);
  if (value == kUnknown) {
    int major = 0;
    const bool asked =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    value = asked && major >= 9 ? kYes : kNo;
    answer.store(value, std::memory_order_relaxed);
  }
  return value == kYes;
}

}  // namespace

Status LaunchDependent(const char* name, const void* kernel, unsigned blocks, unsigned threads,
                       size_t shared_bytes, const void* parameter, CUstream_st* stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = TakesDependents() ? 1 : 0;
  void* parameters[] = {const_cast<void*>(parameter)};
  (void)cudaLaunchKernelExC(&config, kernel, parameters);
  return LaunchStatus(name);
}

}  // namespace tandem::cuda
