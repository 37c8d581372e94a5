// File: norm_scales.h
//
// How the scales of a quantised norm lie: see plan::Norm. Alike for programs, the host's kernels and CUDA's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/steps.h"

namespace tandem::plan {

// Blocks of kScaleBlock columns of a row; the last one may be shorter.
inline int64_t NormScaleBlocks(int64_t columns) { return (columns + kScaleBlock - 1) / kScaleBlock; }

// Whether rows of extents `out` may have scales of extents `scales`: one for each row, or for each block of it.
inline bool FitScales(const std::vector<int64_t>& scales, const std::vector<int64_t>& out) {
  if (scales.empty() || scales.size() != out.size()) return false;
  for (size_t d = 0; d + 1 < out.size(); ++d) {
    if (scales[d] != out[d]) return false;
  }
  return scales.back() == 1 || scales.back() == NormScaleBlocks(out.back());
}

// Elements from a row's scales to the next row's, where all leading dimensions lie at one pitch; else nothing.
template <class Place>
std::optional<int64_t> RowPitchOf(const StridedView<Place>& scales) {
  int64_t pitch = 0, rows = 1;
  for (size_t d = scales.extent.size() - 1; d-- > 0;) {
    if (scales.extent[d] == 1) continue;
    if (rows == 1) pitch = scales.stride[d];
    if (scales.stride[d] != pitch * rows) return std::nullopt;
    rows *= scales.extent[d];
  }
  return pitch;
}

// The reason against a norm's quantisation: its types or extents. Null where they fit, or where nothing is
// quantised.
template <class Place>
const char* WhyNotQuantized(const Norm<Place>& norm) {
  if (!norm.has_quantized)
    return norm.has_static_scale || norm.has_scales ? "a scale of a norm that is not quantised" : nullptr;
  if (norm.has_static_scale == norm.has_scales)
    return "a quantised norm has a given scale, or makes its scales";
  if (norm.quantized.dtype != DType::kF8E4M3 || norm.quantized.extent != norm.out.extent ||
      !IsContiguous(norm.quantized))
    return "a quantised norm is contiguous f8e4m3 of the norm's shape";
  if (norm.has_static_scale) {
    const bool fits = norm.static_scale.dtype == DType::kF32 && Elements(norm.static_scale) == 1;
    return fits ? nullptr : "the scale of a quantised norm is one element of f32";
  }
  const bool fits = norm.scales.dtype == DType::kF32 && FitScales(norm.scales.extent, norm.out.extent) &&
                    RowPitchOf(norm.scales).has_value();
  return fits ? nullptr : "scales of a quantised norm are f32, for each row or each 128 columns of it";
}

}  // namespace tandem::plan
