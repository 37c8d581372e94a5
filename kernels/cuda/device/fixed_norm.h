// File: fixed_norm.h
//
// Norms whose bits do not depend on the number of rows: see Norm::fixed_order.
#pragma once

#include "kernels/cuda/device/launch.h"

namespace tandem::cuda {

// The most threads that share a row.
inline constexpr int kFixedNormThreads = 512;
// LaunchNorm with as many threads of a row as its length alone decides. INVALID_ARGUMENT where the addresses do
// not allow that.
Status LaunchFixedNorm(const NormLaunch& norm, CUstream_st* stream);

}  // namespace tandem::cuda
