// File: tiling.h
//
// How the fused kernel walks a product: tile width, clusters, CTAs, runs.
#pragma once

#include <vector>

#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::cuda {

// The tiling that is expected to be fastest for `matmul` (types, layout, rows, n and pieces are set) on a
// GPU of `sms` SMs:
//   - Tiles of 128×256, in clusters of two along M where pieces have an even number of tiles and there is
//     such a kernel: 0.96 to 1.0 of cuBLASLt's best where tiles come in nearly whole waves.
//   - Tiles of 128×224 in clusters of two, where they leave fewer SMs idle in the last wave by more than the
//     1 % that they lose otherwise. Not where pieces are summed: they were slower in every case, so no such
//     kernel sums.
//   - For exact sums of fp8 also tiles of 128×192, which lose nothing, while 256 and 224 columns lose 7 and
//     11 %. Not where pieces are summed.
//   - Only as many CTAs as the waves need, so that pieces end with a wave and their transfers begin earlier.
//     Never the last two SMs: copies that the driver makes by a kernel must get on while pieces wait for
//     them. All SMs for all-reduces, which deliver by tiles: 2 to 7 % faster from 4096 rows on, alone on 4
//     H200s.
//   - The last wave's tiles are delivered directly, the tiles before it by handoff. All directly where sums
//     go to all ranks and K is short.
//
// Measured on 2 and 4 H200s: bench/figures/kernels.md.
FusedTiling ChooseTiling(const FusedMatmul& matmul, int sms);

// `matmul`'s pieces in runs. A run has one piece, except:
//   - The kernel delivers the peers' pieces itself: those pieces share their bands, by word bands if there
//     are some. Each word band comes before the sums of the word band before it.
//   - Another reduce-scatter on four ranks or more: the pieces that are computed first share their bands, so
//     that B is read less often. The last two pieces stay alone, since nothing hides their transfers and
//     sum.
std::vector<PieceRun> ChooseRuns(const FusedMatmul& matmul);

}  // namespace tandem::cuda
