// File: fused_block_scales.cuh
//
// Scales by blocks of 128: each stage's sums, of a block of K, are multiplied by one factor of their row and
// one of their columns' block as they are added (DeepSeek-V3 Technical Report, 3.3.2). Rows' factors are read
// past L1: a neighbour's line may have been read before this piece was ready.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"

namespace tandem::cuda {

// One thread's factors for ExactMainloop: of the thread's two rows, 8 apart, and of the tile's two blocks of
// columns. Rows and blocks beyond C take the last one's factors: they are computed and never stored.
//
// They are read two stages ahead. Where both parts of a tile are multiplied at once, each stage takes them
// from the same registers, and they are moved. Registers in turn are 2.5 % slower there on an H200: ptxas
// puts the first part's additions behind the second's wait. Elsewhere registers in turn are faster, by 3 to
// 9 %.
template <class T>
struct BlockScaledSums {
  static_assert(T::kKBlock == 128 && T::kTileN % 64 == 0 && T::kTileN <= 256);
  static constexpr bool kMoves = T::kPartsAtOnce;
  static constexpr int kSlots = kMoves ? 1 : 2;
  static constexpr int kValues = T::kPartColumns / 2;
  // Tiles begin at a block's begin or in its middle.
  static constexpr bool kShifts = T::kTileN % 128 != 0;

  const float *row, *column;           // of the next stage to read
  int lower, right;                    // to the second row's and the second block's
  int row_step, column_step;           // to the next stage's
  int left;                            // stages to read
  bool shifted;                        // the tile begins in a block's middle
  float of_row[2][2], of_block[2][2];  // by slot; where they are moved, the second is the next stage's

  // `first_row`: the thread's first within the piece; `first_column`: the tile's, in C.
  __device__ __forceinline__ BlockScaledSums(const FusedMatmulParams& params, const MatmulPiece& piece,
                                             int first_row, int first_column)
      : row_step(params.row_scale_block_step),
        column_step(params.column_scale_block_step),
        left(params.k_blocks),
        shifted(kShifts && first_column % 128 != 0) {
    const int upper = min(first_row, piece.rows - 1), last = (params.n - 1) / 128;
    const int block = min(first_column / 128, last);
    row = piece.row_scale + static_cast<int64_t>(upper) * params.row_scale_step;
    lower = (min(first_row + 8, piece.rows - 1) - upper) * params.row_scale_step;
    column = params.column_scale + static_cast<int64_t>(block) * params.column_scale_step;
    right = (min(block + 1, last) - block) * params.column_scale_step;
    if constexpr (kMoves) Load(1);
  }
  __device__ __forceinline__ void Read(int slot) {
    if constexpr (kMoves) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of_row[0][i] = of_row[1][i];
        of_block[0][i] = of_block[1][i];
      }
    }
    Load(kMoves ? 1 : slot);
  }
  __device__ __forceinline__ void Load(int slot) {
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
    float first[2], second[2], middle[2];  // by row: of columns from 0, 128, and 64 on
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first[i] = of_row[slot][i] * of_block[slot][0];
      second[i] = of_row[slot][i] * of_block[slot][1];
      middle[i] = kShifts && shifted ? second[i] : first[i];
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int in_tile = part * T::kPartColumns + (i >> 2) * 8, at = part * kValues + i,
                lower_row = (i >> 1) & 1;
      const float factor = in_tile >= 128  ? second[lower_row]
                           : in_tile >= 64 ? middle[lower_row]
                                           : first[lower_row];
      d[at] = fmaf(sum[i], factor, d[at]);
    }
  }
};

}  // namespace tandem::cuda
