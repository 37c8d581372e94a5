#include "kernels/cuda/device/launch_status.h"

#include <cuda_runtime_api.h>

#include <string>

namespace tandem::cuda {

Status LaunchStatus(const char* kernel) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return Status::Ok();
  return Internal(std::string("launch of ") + kernel + ": " + cudaGetErrorName(error) + " (" +
                  std::to_string(static_cast<int>(error)) + "): " + cudaGetErrorString(error));
}

Status LoadKernel(const char* name, const void* kernel) {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, kernel);
  return LaunchStatus(name);
}

}  // namespace tandem::cuda
