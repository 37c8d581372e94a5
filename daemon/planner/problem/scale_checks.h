// File: scale_checks.h
//
// The rules of fp8 scales: what the shapes of scale_a and scale_b mean.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// The blocks of kScaleBlock elements in `extent`; the last may be shorter.
int64_t ScaleBlocks(int64_t extent);

// Checks shapes and dtypes of scale_a and of every scale_b, and fills the mode. `gathered` is A's shape after
// its gather, or A's own; shapes of A and B are checked already.
//
// B's shape decides whether scales are by blocks. K of one block leaves no difference: (1, N) and one element
// are then B's by columns and for the tensor, with A's row-wise.
Status FillScaleMode(Problem* problem, const std::vector<int64_t>& gathered);

}  // namespace tandem::plan
