#include <cuda_runtime.h>

#include <string>

#include "tests/gpu/fused/fused_test_hooks.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void CountDifferent(const uint32_t* have, const uint32_t* wanted, int64_t words, uint64_t* count) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < words;
       i += int64_t{kThreads} * gridDim.x) {
    if (have[i] != wanted[i]) atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ull);
  }
}

Status RuntimeStatus(const char* call, cudaError_t error) {
  return error == cudaSuccess ? Status::Ok() : Internal(std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace

Status LaunchCountDifferent(const void* have, const void* wanted, size_t bytes, uint64_t* count,
                            CUstream_st* stream) {
  CountDifferent<<<16, kThreads, 0, stream>>>(static_cast<const uint32_t*>(have),
                                              static_cast<const uint32_t*>(wanted),
                                              static_cast<int64_t>(bytes / sizeof(uint32_t)), count);
  return RuntimeStatus("CountDifferent", cudaGetLastError());
}

Status LoadCountDifferent() {
  cudaFuncAttributes attributes = {};
  return RuntimeStatus("cudaFuncGetAttributes",
                       cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&CountDifferent)));
}

}  // namespace tandem::cuda
