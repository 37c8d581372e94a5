// File: fused_block_mainloop.cuh
//
// ExactMainloop with scales by blocks of 128 of K: a stage is a block, and a part of the tile's columns a block of N, so each
// stage's sums are multiplied by one factor of their row and one of their part as they are added (DeepSeek-V3 Technical Report,
// 3.3.2). Factors are read a block ahead, past L1: a neighbour's line may have been read before this piece was ready.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/ptx.cuh"
#include "kernels/cuda/native/wgmma.cuh"

namespace tandem::cuda {

// One thread's factors: of its two rows, 8 apart, and of the tile's parts. What lies outside of C takes its last row's or
// block's: it is computed and never stored.
template <class T>
struct BlockScaleReader {
  static_assert(T::kParts <= 2);
  const float *row, *column;  // of the next block
  int lower, right;           // to the second row's and the second part's
  int row_block, column_block;

  __device__ __forceinline__ BlockScaleReader(const FusedMatmulParams& params, const MatmulPiece& piece, int first_row, int n_block) {
    const int upper = min(first_row, piece.rows - 1), last = (params.n - 1) / 128, left = min(n_block, last);
    row = piece.row_scale + static_cast<int64_t>(upper) * params.row_scale_step;
    lower = (min(first_row + 8, piece.rows - 1) - upper) * params.row_scale_step;
    column = params.column_scale + static_cast<int64_t>(left) * params.column_scale_step;
    right = (min(n_block + 1, last) - left) * params.column_scale_step;
    row_block = params.row_scale_block_step;
    column_block = params.column_scale_block_step;
  }
  __device__ __forceinline__ void Next(float (&rows)[2], float (&parts)[T::kParts]) {
    rows[0] = __ldcg(row);
    rows[1] = __ldcg(row + lower);
    parts[0] = __ldg(column);
    if constexpr (T::kParts == 2) parts[1] = __ldg(column + right);
    row += row_block;
    column += column_block;
  }
};

template <class T, class Release>
__device__ __forceinline__ void BlockScaledMainloop(const FusedShared<T>& shared, int group, int k_blocks,
                                                    RingPlace<T::kStages>& place, BlockScaleReader<T> reader,
                                                    float (&d)[T::kTileN / 2], const Release& release) {
  static_assert(T::kKBlock == 128 && T::kPartColumns == 128);
  constexpr int kValues = T::kPartColumns / 2;
#pragma unroll
  for (int i = 0; i < T::kTileN / 2; ++i) d[i] = 0.0f;
  float rows[2], parts[T::kParts];
  reader.Next(rows, parts);
#pragma unroll 1
  for (int block = 0; block < k_blocks; ++block) {
    const int stage = place.stage;
    ptx::Wait(shared.Full(stage), place.phase);
    float next_rows[2] = {}, next_parts[T::kParts] = {};
    if (block + 1 < k_blocks) reader.Next(next_rows, next_parts);
    const uint64_t a =
        ptx::DescriptorAlongK(shared.A(stage) + static_cast<uint32_t>(group) * (T::kABytes / 2));
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) {
      const uint64_t b =
          ptx::DescriptorAlongK(shared.B(stage) + static_cast<uint32_t>(part) * T::kBPartBytes);
      float sum[kValues];  // begins anew: not alive from part to part
      ptx::WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        ptx::Wgmma<false>(typename T::A(), typename T::B(), sum, a + 2 * k, b + 2 * k, k);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::WgmmaSettled(sum);
      if (part == T::kParts - 1) release(stage);
      const float factor[2] = {rows[0] * parts[part], rows[1] * parts[part]};
#pragma unroll
      for (int i = 0; i < kValues; ++i) d[part * kValues + i] = fmaf(sum[i], factor[(i >> 1) & 1], d[part * kValues + i]);
    }
    rows[0] = next_rows[0];
    rows[1] = next_rows[1];
#pragma unroll
    for (int part = 0; part < T::kParts; ++part) parts[part] = next_parts[part];
    place.Next();
  }
}

}  // namespace tandem::cuda
