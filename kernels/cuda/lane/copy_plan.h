// File: copy_plan.h
//
// How a strided copy runs on CUDA: by copy engine where its boxes are rows at a pitch, by SMs otherwise.
#pragma once

#include "drivers/cuda/cuda_driver.h"
#include "kernels/backend.h"

namespace tandem::cuda {

// Enqueues the copy. `args.copy_engine` is a wish: boxes that no copy engine takes (strided elements,
// broadcasts, over three dimensions) go by SMs. Errors as host::PrepareCopy.
Status EnqueueCopy(const CopyArgs& args, CudaDriver& driver, CUstream stream);

}  // namespace tandem::cuda
