// File: tiling.h
//
// How the fused kernel walks a product: tile width, clusters, CTAs, runs.
#pragma once

#include <vector>

#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::cuda {

// What is expected to be fastest for `matmul` (types, layout, rows, n and pieces are set) on a GPU of `sms`
// SMs:
//   - tiles of 128×256, in clusters of two along M where pieces have an even number of them and there is such
//   a kernel: 0.96
//     to 1.0 of cuBLASLt's best where they come in nearly whole waves;
//   - tiles of 128×224 in clusters of two where they leave fewer SMs idle in the last wave, by more than the
//   1 % that they
//     lose otherwise; not where pieces are summed, where they were slower in every case, so that no kernel of
//     theirs sums;
//   - for exact sums of fp8 tiles of 128×192 too, which lose nothing while those of 256 and 224 columns lose
//   7 and 11 %; not summed either;
//   - only as many CTAs as the waves need, so that pieces end with a wave and their transfers begin that much
//   earlier, and never
//     the last two SMs: copies that the driver makes by a kernel must get on while pieces wait for what they
//     bring. All SMs for all-reduces, which deliver by tiles: 2 to 7 % faster from 4096 rows on, alone on 4
//     H200s;
//   - the last wave's tiles delivered directly, those before it carried; all directly where sums go to all
//   ranks and K is short.
// Measured on 2 and 4 H200s: docs/performance-kernels.md.
FusedTiling ChooseTiling(const FusedMatmul& matmul, int sms);

// `matmul`'s pieces in runs. One each, unless
//   - it delivers what peers own itself: those pieces share their bands, by word bands if it has some, each
//   before what is summed of
//     the word band before;
//   - it is another reduce-scatter on four ranks or more: there the pieces that are computed first share
//   their bands, so that B is
//     read less often; the last two, whose transfers and sum nothing hides, stay alone.
std::vector<PieceRun> ChooseRuns(const FusedMatmul& matmul);

}  // namespace tandem::cuda
