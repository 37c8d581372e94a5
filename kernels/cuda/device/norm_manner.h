// File: norm_manner.h
//
// How a norm's bits come about: the order in which squares are added, and which values are squared.
#pragma once

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/norm_quantization.h"

namespace tandem::cuda {

// The most threads that share a row of a fixed order.
inline constexpr int kFixedNormThreads = 512;

struct NormManner {
  bool fixed_order = false;  // a row has as many threads as its length alone decides: see Norm::fixed_order
  bool unrounded = false;    // see Norm::unrounded
};

// LaunchNorm in that manner, with what the rows are quantised to. INVALID_ARGUMENT where the addresses do not
// allow a fixed order.
Status LaunchNorm(const NormLaunch& norm, const NormManner& manner, const NormQuantization& quantization,
                  CUstream_st* stream);

}  // namespace tandem::cuda
