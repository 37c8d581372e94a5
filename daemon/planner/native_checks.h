// File: native_checks.h
//
// Which requests the native kernels take (kernels/cuda/native): what TMA and their tiles need of shapes, strides and
// types.
#pragma once

#include <string>

#include "daemon/planner/problem.h"

namespace tandem::plan {

// Empty when the native algorithm can run the request, else why not. `problem`'s operation is one that has it.
std::string WhyNotNative(const Problem& problem);

// The native kernel's tiles, one an SM at a time, of `pieces` pieces of `rows` rows and `n` columns each.
int64_t NativeTiles(int64_t pieces, int64_t rows, int64_t n);

// Whether `pieces` pieces of `rows` rows and `n` columns each have no more tiles than the native kernel computes at once. What
// comes before or after the products is hidden by none of them then.
bool IsOneNativeWave(int64_t pieces, int64_t rows, int64_t n);

// How an all-reduced product is cut into tiles of rows, `groups` an owner. All have `rows` rows but the last one, which may have
// fewer; those behind it, of the last owners, have none.
struct NativeCut {
  int groups = 1;
  int64_t rows = 0;  // of a tile
  int64_t m = 0;     // of the product
  int world_size = 1;

  // The tiles that have rows.
  int64_t tiles() const { return (m + rows - 1) / rows; }
  bool even() const { return m == groups * world_size * rows; }
  // The rows of `owner`'s tile of `group`. Where not all are alike, the product's end comes first: the kernel reads short tiles'
  // partial sums as if they were whole, so there must be others behind them.
  Range Rows(int owner, int group) const {
    const int64_t first = ((even() ? group : groups - 1 - group) * world_size + owner) * rows;
    return first < m ? Range{first, m - first < rows ? m - first : rows} : Range{m, 0};
  }
};

// Up to four tiles an owner of at least 512 rows and whole tiles of the kernel each; one, of ceil(rows / ranks), where that
// cannot be. Where the ranks' parts are not equal, several tiles an owner are rounded up to the kernel's, if the product is more
// than a wave of those and what the last ones miss is no more than an eighth of it.
NativeCut CutNative(int64_t rows, int64_t n, int world_size);

// `view` with all dimensions but the last as one; they must lie at one pitch, as WhyNotNative makes sure.
View FoldedRows(const View& view);

}  // namespace tandem::plan
