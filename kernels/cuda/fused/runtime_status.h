// File: runtime_status.h
//
// Errors of the CUDA runtime, which launches the fused and the skinny kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tandem/status.h"

namespace tandem::cuda {

// INTERNAL with the name and the text of `error`; OK for success.
inline Status RuntimeStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return Status::Ok();
  return Internal(std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace tandem::cuda
