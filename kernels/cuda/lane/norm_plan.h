// File: norm_plan.h
//
// How an RMSNorm runs on CUDA.
#pragma once

#include "kernels/backend.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Enqueues the norm on `stream` of the current context, behind the work that makes the sum; see LaunchNorm.
// Errors as host::CheckNorm.
Status EnqueueNorm(const NormArgs& args, CUstream_st* stream);

}  // namespace tandem::cuda
