// File: dependent_launch.h
//
// Launches a kernel that may begin while the kernel before it on the stream ends.
#pragma once

#include <cstddef>

#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Enqueues `kernel` with one parameter of any size. The kernel must call AwaitEarlierWork (dependent.cuh)
// first. `name` is for the failure's text.
Status LaunchDependent(const char* name, const void* kernel, unsigned blocks, unsigned threads,
                       size_t shared_bytes, const void* parameter, CUstream_st* stream);

}  // namespace tandem::cuda
