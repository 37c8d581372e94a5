// File: fused_epilogue.cuh
//
// What happens to sums in registers before they are stored: scales, bias, rounding.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/native/fused_matmul.h"

namespace tandem::cuda {

template <class Out>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<Out, __half>) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
  }
}
template <class Out>
__device__ __forceinline__ float2 Unpack(uint32_t bits) {
  if constexpr (std::is_same_v<Out, __half>) {
    return __half22float2(*reinterpret_cast<__half2*>(&bits));
  } else {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&bits));
  }
}

// What the epilogue multiplies and adds. One thread's values of a box: value i in row (i & 2) * 4 and column
// (i >> 2) * 8 + (i & 1) from the thread's first.
template <class T>
struct Epilogue {
  static constexpr int kValues = T::kBoxColumns / 2;
  const FusedMatmulParams& params;
  const MatmulPiece& piece;
  int column;       // the thread's first in C
  float factor[2];  // of its two rows

  // `row`: the thread's first within the piece.
  __device__ __forceinline__ Epilogue(const FusedMatmulParams& all, const MatmulPiece& own, int row,
                                      int first_column)
      : params(all), piece(own), column(first_column) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = params.alpha;
      // Past L1: a neighbour's line may have been read before this piece was ready.
      if (piece.row_scale != nullptr && row + i * 8 < params.rows) {
        factor[i] *= __ldcg(piece.row_scale + (row + i * 8) * params.row_scale_step);
      }
    }
  }
  __device__ __forceinline__ void Scale(float (&c)[kValues], int sub) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) c[i] *= factor[(i >> 1) & 1];
    if (params.column_scale == nullptr) return;
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        int at = column + sub * T::kBoxColumns + i * 2 + x;
        float scale = at < params.n ? __ldg(params.column_scale + at * params.column_scale_step) : 0.0f;
        c[i + x] *= scale;
        c[i + 2 + x] *= scale;
      }
    }
  }
  __device__ __forceinline__ void Finish(float (&c)[kValues], int sub) const {
    if (piece.finish == 0) return;
    if (params.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          int at = column + sub * T::kBoxColumns + i * 2 + x;
          if (at >= params.n) continue;
          float bias = params.bias_is_float != 0
                           ? static_cast<const float*>(params.bias)[at]
                           : static_cast<float>(static_cast<const typename T::Out*>(params.bias)[at]);
          c[i + x] += bias;
          c[i + 2 + x] += bias;
        }
      }
    }
    if (params.result_scale != nullptr) {
      float scale = *params.result_scale;
#pragma unroll
      for (int i = 0; i < kValues; ++i) c[i] *= scale;
    }
  }
};

}  // namespace tandem::cuda
