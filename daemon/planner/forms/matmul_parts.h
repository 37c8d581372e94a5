// File: matmul_parts.h
//
// Parts of a request's matmul as steps: slices of A, B, C and of the scales that belong together.
#pragma once

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Scale of A as a MatmulStep wants it: one element, or A's leading extents without the closing one; by blocks
// as it is.
View ScaleAView(const Problem& problem, int rank);
// Scale of B number `i`: one element, or N elements; by blocks as it is.
View ScaleBView(const Problem& problem, int rank, size_t i);

// The blocks of scales of elements [begin, begin + length) of K; begin is a multiple of kScaleBlock.
Range ScaleBlockRange(Range k);

// C_i = A * B_i with scales, bias and result scale, all of the rank's own operands.
MatmulStep WholeMatmul(const Problem& problem, int rank, size_t i);

// Elements [begin, begin + length) of the product along its dimension `dim` into `c`: rows of A, or columns
// of B for the last dimension. With scales, without bias and result scale: a partial sum of a reduction.
MatmulStep PartialMatmul(const Problem& problem, int rank, int dim, Range range, const View& c);

// Cuts B of `step`, and B's scales by blocks, to `range` of K. The caller cuts A.
void SliceK(Range range, MatmulStep* step);

// Adds bias and result scale of the whole sum to `sum`, whose dst is this rank's output number `i`. `dim` is
// the scattered dimension, or -1 if the rank has the whole product.
void AddEpilogue(const Problem& problem, int rank, int dim, ReduceStep* sum, size_t i = 0);
bool HasEpilogue(const Problem& problem);

// The explanation of a product and then a reduction by `collective`. `rounds_again`: bias, result scale or
// C's own type come after the sum.
void SetUnfusedNumbers(const Problem& problem, Algorithm collective, bool rounds_again, OperationPlan* plan);

}  // namespace tandem::plan
