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

// The tiles of rows that each rank owns of an all-reduced product of `rows` rows: as many, up to four, as leave each at
// least 512 rows and whole tiles of the kernel; one where that cannot be. 0: the ranks' parts are not equal.
int NativeTilesPerOwner(int64_t rows, int world_size);

// `view` with all dimensions but the last as one; they must lie at one pitch, as WhyNotNative makes sure.
View FoldedRows(const View& view);

}  // namespace tandem::plan
