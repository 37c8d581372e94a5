// File: copy.h
//
// The host backend's copy: a strided box of elements from one place to another.
#pragma once

#include "kernels/backend.h"
#include "kernels/host/strided.h"
#include "kernels/host/task.h"
#include "tandem/status.h"

namespace tandem::host {

// A copy, checked and merged, ready to run.
struct BoxCopy {
  StridedBox box;  // view 0 is the source, view 1 the destination
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  int64_t element_bytes = 1;
};

// INVALID_ARGUMENT when extents or dtypes of source and destination differ.
Result<BoxCopy> PrepareCopy(const CopyArgs& args);

// Runs it: runs of bytes by memcpy, else element by element. With a delay in `context`, in random pieces with
// pauses.
void RunCopy(const BoxCopy& copy, const TaskContext& context);

}  // namespace tandem::host
