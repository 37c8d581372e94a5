// File: norm_value.cuh
//
// The arithmetic that all kernels with a norm share, so that they give the same bits.
#pragma once

#include "kernels/cuda/device/elements.cuh"

namespace tandem::cuda {

// The value that is normed: the sum, or the sum with the residual, in fp32 or as Element has it. `residual` is not
// read where the norm has none.
template <typename Element>
__device__ inline float NormedValue(const NormLaunch& norm, bool unrounded, const Element& sum,
                                    const Element& residual) {
  if (norm.residual == nullptr) return ToFloat(sum);
  const float value = ToFloat(sum) + ToFloat(residual);
  if (unrounded) return value;
  Element rounded;
  FromFloat(value, &rounded);
  return ToFloat(rounded);
}

// Squares of fp32 values are not exact, so that no compiler may choose where they are rounded.
__device__ inline float AddSquare(float value, float squares) { return __fmaf_rn(value, value, squares); }

}  // namespace tandem::cuda
