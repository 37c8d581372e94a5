// File: reduce_plan.h
//
// How a sum of strided tensors runs on CUDA.
#pragma once

#include "kernels/backend.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Enqueues the sum on `stream` of the current context. UNIMPLEMENTED for more sources than the kernel has
// room for; other errors as host::PrepareReduce.
Status EnqueueReduce(const ReduceArgs& args, CUstream_st* stream);

}  // namespace tandem::cuda
