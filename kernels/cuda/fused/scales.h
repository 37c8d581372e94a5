// File: scales.h
//
// The scales and bias that the fused kernels take.
#pragma once

#include <optional>

#include "kernels/backend.h"

namespace tandem::cuda {

// A scale: one for all (step 0) or one each (step 1), if its elements lie one after another.
inline std::optional<int> StepOf(const DeviceView& view) {
  if (!plan::IsContiguous(view)) return std::nullopt;
  return plan::Elements(view) == 1 ? 0 : 1;
}

// True if the kernels read `scale`.
inline bool TakesScale(bool has, const DeviceView& scale) {
  return !has || (scale.dtype == DType::kF32 && StepOf(scale).has_value());
}

// True if the kernels add this kind of `bias`. `out`: the type of the product or sum.
inline bool TakesBias(bool has, const DeviceView& bias, DType out) {
  return !has || ((bias.dtype == out || bias.dtype == DType::kF32) && StepOf(bias).has_value());
}

}  // namespace tandem::cuda
