#include "kernels/cuda/device/dependent_launch.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

// Before sm_90 a launch with these attributes is not allowed. The runtime is asked once for each GPU.
bool TakesAttributes() {
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

cudaLaunchAttribute ClusterAttribute(unsigned blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

}  // namespace

unsigned MaxClusterOf(const void* kernel, unsigned threads, unsigned most) {
  if (!TakesAttributes()) return 1;
  for (unsigned blocks = most; blocks > 1; blocks /= 2) {
    cudaLaunchAttribute attribute = ClusterAttribute(blocks);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess && clusters > 0)
      return blocks;
    (void)cudaGetLastError();
  }
  return 1;
}

Status LaunchDependent(const char* name, const void* kernel, unsigned blocks, unsigned threads,
                       size_t shared_bytes, const void* parameter, CUstream_st* stream, unsigned cluster) {
  std::array<cudaLaunchAttribute, 2> attributes = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1] = ClusterAttribute(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = !TakesAttributes() ? 0 : cluster > 1 ? 2 : 1;
  void* parameters[] = {const_cast<void*>(parameter)};
  (void)cudaLaunchKernelExC(&config, kernel, parameters);
  return LaunchStatus(name);
}

}  // namespace tandem::cuda
