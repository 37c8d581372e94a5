// File: reductions.h
//
// The kernels of phases whose reduction is no sum, compiled apart: one for each type, which asks a launch for
// its reduction.
#pragma once

#include "kernels/cuda/collectives/client_launch.h"
#include "tandem/op_request.h"

namespace tandem::cuda {

inline bool Reduces(const PhasesLaunch& launch) {
  return launch.sums && static_cast<ReduceOp>(launch.reduce_op) != ReduceOp::kSum;
}

// For a launch by an engine.
using ReductionKernelType = void (*)(const PhasesLaunch);
ReductionKernelType ReductionKernel(DType type);
// Loads all of these into the current context.
Status ReductionKernelsLoad();

// For a launch by a client.
const void* ClientReductionKernel(DType type);

}  // namespace tandem::cuda
