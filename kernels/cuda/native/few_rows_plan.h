// File: few_rows_plan.h
//
// From a product of few rows, as the executor hands it to a lane, to one launch of its kernel.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/native/few_rows_matmul.h"
#include "tandem/status.h"

namespace tandem::cuda {

// True when there is a kernel for `args`; reads types, extents and strides, no addresses.
bool TakesFewRows(const FewRowsArgs& args);

// The kernel's work; `args` has few_rows. `state`: see FewRowsMatmul.
Result<FewRowsMatmul> MakeFewRowsMatmul(const CollectiveArgs& args, void* state);

// What puts work on a stream; tests have their own.
struct FewRowsCalls {
  decltype(&LaunchFewRows) launch = &LaunchFewRows;
};

// Makes and enqueues it; with CollectiveArgs::prepared what was made is kept for launches with the same addresses. One stream for one
// `state`.
Status EnqueueFewRows(const CollectiveArgs& args, void* state, CUstream_st* stream, const FewRowsCalls& calls = {});

}  // namespace tandem::cuda
