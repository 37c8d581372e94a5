// File: fused_checks.h
//
// The requests that the fused kernels take (kernels/cuda/fused): the limits of TMA and of their tiles on
// shapes, strides and types.
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Empty when the fused algorithm can run the request, else why not. `problem`'s operation is one that has
// it.
std::string WhyNotFused(const Problem& problem);

// Empty when there is a fused kernel for the request's types, N, K and B, else why not. It asks neither for
// the number of rows, above 0, nor for their pitch: for these see WhyNotFused.
std::string WhyNoFusedKernel(const Problem& problem);

// The fused kernel's tiles, one an SM at a time, of `pieces` pieces of `rows` rows and `n` columns each.
int64_t FusedTiles(int64_t pieces, int64_t rows, int64_t n);

// Whether `pieces` pieces of `rows` rows and `n` columns each have no more tiles than the fused kernel
// computes at once. No product then hides the work before or after the products.
bool IsOneFusedWave(int64_t pieces, int64_t rows, int64_t n);

// The cut of an all-reduced product into the ranks' parts. Each part has `rows` rows, except that the last
// one with rows may have fewer, and the last ranks may have none.
struct FusedTileCut {
  int64_t rows = 0;  // of a part
  int64_t m = 0;     // of the product
  int world_size = 1;
  int bands = 1;  // of columns, signalled one by one: see fused_matmul.h of the CUDA kernels

  // The parts that have rows.
  int64_t parts() const { return (m + rows - 1) / rows; }
  Range Rows(int owner) const {
    const int64_t first = owner * rows;
    return first < m ? Range{first, m - first < rows ? m - first : rows} : Range{m, 0};
  }
};

// Parts of ceil(rows / ranks) rows; where those are not equal, and more than a wave of the kernel's tiles, of
// whole tiles if the last ones then miss no more than an eighth of the product. Bands are about a wave of
// tiles each, but no narrower than four of them, for narrower ones read A too often (four H200s:
// bench/figures/kernels.md), and 16 at most; of no more than a wave one.
FusedTileCut CutFusedTiles(int64_t rows, int64_t n, int world_size);

// `view` with all dimensions but the last as one; they must lie at one pitch (HasOnePitch), as WhyNotFused
// makes sure.
View FoldedRows(const View& view);

}  // namespace tandem::plan
