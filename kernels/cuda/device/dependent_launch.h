// File: dependent_launch.h
//
// Launches a kernel that may begin while the kernel before it on the stream ends.
#pragma once

#include <cstddef>

#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Enqueues `kernel` with one parameter of any size. The kernel must call WaitForPrimary (dependent.cuh)
// first. `name` is for the failure's text. `cluster`: of so many blocks each, of which `blocks` is a
// multiple; 1: of none.
Status LaunchDependent(const char* name, const void* kernel, unsigned blocks, unsigned threads,
                       size_t shared_bytes, const void* parameter, CUstream_st* stream, unsigned cluster = 1);

// The largest cluster of `kernel`'s blocks, a power of two up to `most`, that the current GPU can run. 1: it
// has none. May load the kernel.
unsigned MaxClusterOf(const void* kernel, unsigned threads, unsigned most);

}  // namespace tandem::cuda
