// File: fused_epilogue.cuh
//
// Scales and bias, applied to sums in registers before they are stored. The tensor cores have no work of this
// warpgroup meanwhile, so it is short: its inputs are loaded while the last products run, and a step that a
// plan does not have costs no instruction.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_box.cuh"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"

namespace tandem::cuda {

__device__ __forceinline__ float2 LoadPair(const float* pair) {
  return __ldg(reinterpret_cast<const float2*>(pair));
}
template <class Element>
__device__ __forceinline__ float2 LoadPair(const Element* pair) {
  return Unpack<Element>(__ldg(reinterpret_cast<const uint32_t*>(pair)));
}

// The factors and summands of the epilogue. One thread's values of a box: see BoxLane.
template <class T>
struct Epilogue {
  static constexpr int kValues = T::kBoxColumns / 2, kColumns = kValues / 2;
  // 16-bit operands have no scales, and with scales by blocks the main loop has done it.
  static constexpr bool kScales = sizeof(typename T::A) == 1 && !T::kBlocks;

  const FusedMatmulParams& params;
  float all;  // what all of C is multiplied by
  bool by_column;
  int column;          // the thread's first in C
  float row_scale[2];  // of the thread's two rows

  __device__ __forceinline__ explicit Epilogue(const FusedMatmulParams& of)
      : params(of),
        all(of.alpha),
        by_column(kScales && of.column_scale != nullptr && of.column_scale_step != 0) {
    if (kScales && params.column_scale != nullptr && !by_column) all *= __ldg(params.column_scale);
  }

  // Begins to read what scales a tile. `row`: the thread's first within the piece; `first_column`: in C.
  __device__ __forceinline__ void Begin(const MatmulPiece& piece, int row, int first_column) {
    column = first_column;
    if constexpr (kScales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        row_scale[i] = 1.0f;
        // Past L1: a neighbour's line may have been read before this piece was ready.
        if (piece.row_scale != nullptr && row + i * 8 < piece.rows) {
          row_scale[i] = __ldcg(piece.row_scale + (row + i * 8) * params.row_scale_step);
        }
      }
      if (by_column) {
        // Into L1, for the columns are read where registers are scarce.
        const int thread = threadIdx.x & 127, at = first_column - (thread & 3) * 2 + thread * 2;
        if (at < params.n && thread * 2 < T::kTileN) ptx::Touch(params.column_scale + at);
      }
    }
  }

  __device__ __forceinline__ void ScaleRows(float (&c)[kValues]) const {
    const float factor[2] = {kScales ? all * row_scale[0] : all, kScales ? all * row_scale[1] : all};
#pragma unroll
    for (int i = 0; i < kValues; ++i) c[i] *= factor[(i >> 1) & 1];
  }
  __device__ __forceinline__ void ScaleColumns(float (&c)[kValues], int sub) const {
    float scale[kColumns];
    ReadColumns(params.column_scale, sub, scale);
#pragma unroll
    for (int i = 0; i < kValues; ++i) c[i] *= scale[(i >> 2) * 2 + (i & 1)];
  }

  // The last step, applied only where a result is complete.
  __device__ __forceinline__ bool Finishes(const MatmulPiece& piece) const {
    return piece.finish != 0 && (params.bias != nullptr || params.result_scale != nullptr);
  }
  __device__ __forceinline__ void Finish(float (&c)[kValues], int sub) const {
    if (params.bias != nullptr) {
      float bias[kColumns];
      if (params.bias_is_float != 0) {
        ReadColumns(static_cast<const float*>(params.bias), sub, bias);
      } else {
        ReadColumns(static_cast<const typename T::Out*>(params.bias), sub, bias);
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) c[i] += bias[(i >> 2) * 2 + (i & 1)];
    }
    if (params.result_scale != nullptr) {
      const float scale = *params.result_scale;
#pragma unroll
      for (int i = 0; i < kValues; ++i) c[i] *= scale;
    }
  }

 private:
  // Reads the thread's columns in box `sub`, of C's columns from `from` on. 2 p and 2 p + 1 lie 8 p columns
  // behind the thread's first. 0 beyond C.
  template <class Element>
  __device__ __forceinline__ void ReadColumns(const Element* from, int sub, float (&to)[kColumns]) const {
    const int first = column + sub * T::kBoxColumns;
    from += first;
    const bool inside = first + T::kBoxColumns - 7 < params.n;
    if (inside && (reinterpret_cast<uintptr_t>(from) & (2 * sizeof(Element) - 1)) == 0) {
#pragma unroll
      for (int i = 0; i < kColumns; i += 2) {
        const float2 pair = LoadPair(from + i * 4);
        to[i] = pair.x;
        to[i + 1] = pair.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int at = (i >> 1) * 8 + (i & 1);
        to[i] = first + at < params.n ? static_cast<float>(from[at]) : 0.0f;
      }
    }
  }
};

}  // namespace tandem::cuda
