// File: fused_block_scales.cuh
//
// Scales by blocks of 128: each stage's sums, of a block of K, are multiplied by one factor of their row and
// one of their columns' block as they are added (DeepSeek-V3 Technical Report, 3.3.2). Rows' factors are read
// past L1: a neighbour's line may have been read before this piece was ready.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_traits.cuh"

namespace tandem::cuda {

// For ExactMainloop, one thread's: factors of its two rows, 8 apart, and of the two blocks of columns that its
// tile is. What lies outside of C takes its last row's or block's: it is computed and never stored.
template <class T>
struct BlockScaledSums {
  static_assert(T::kKBlock == 128 && T::kPartColumns == 128 && T::kParts == 2);
  static constexpr int kSlots = 2;  // read two stages ahead, without moving what was read
  static constexpr int kValues = T::kPartColumns / 2;

  const float *row, *column;  // of the next stage
  int lower, right;           // to the second row's and the second block's
  int row_step, column_step;  // to the next stage's
  int left;                   // stages to read
  float of_row[2][2], of_block[2][2];  // by slot

  // `first_row`: the thread's first within the piece; `first_column`: the tile's, in C.
  __device__ __forceinline__ BlockScaledSums(const FusedMatmulParams& params, const MatmulPiece& piece,
                                             int first_row, int first_column)
      : row_step(params.row_scale_block_step),
        column_step(params.column_scale_block_step),
        left(params.k_blocks) {
    const int upper = min(first_row, piece.rows - 1), last = (params.n - 1) / 128;
    const int block = min(first_column / 128, last);
    row = piece.row_scale + static_cast<int64_t>(upper) * params.row_scale_step;
    lower = (min(first_row + 8, piece.rows - 1) - upper) * params.row_scale_step;
    column = params.column_scale + static_cast<int64_t>(block) * params.column_scale_step;
    right = (min(block + 1, last) - block) * params.column_scale_step;
  }
  __device__ __forceinline__ void Read(int slot) {
    if (left-- <= 0) return;
    of_row[slot][0] = __ldcg(row);
    of_row[slot][1] = __ldcg(row + lower);
    of_block[slot][0] = __ldg(column);
    of_block[slot][1] = __ldg(column + right);
    row += row_step;
    column += column_step;
  }
  __device__ __forceinline__ void Add(int part, const float (&sum)[kValues], float (&d)[T::kTileN / 2],
                                      int slot) const {
    const float factor[2] = {of_row[slot][0] * of_block[slot][part], of_row[slot][1] * of_block[slot][part]};
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      d[part * kValues + i] = fmaf(sum[i], factor[(i >> 1) & 1], d[part * kValues + i]);
    }
  }
};

}  // namespace tandem::cuda
