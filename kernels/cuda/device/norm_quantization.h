// File: norm_quantization.h
//
// The quantisation of normed rows, as kernels take it: see plan::Norm.
#pragma once

#include <cstdint>

namespace tandem::cuda {

struct NormQuantization {
  void* out = nullptr;                  // f8e4m3, packed; null: the rows are not quantised
  const float* static_scale = nullptr;  // null: the scales are made
  float* scales = nullptr;              // a row's at row_pitch, a block's of the row at block_pitch
  int64_t row_pitch = 0, block_pitch = 0;
  bool by_blocks = false;  // a scale for each kScaleBlock columns of a row
};

}  // namespace tandem::cuda
