// File: determinism.h
//
// Which algorithms keep what OpRequest::determinism asks for (docs/determinism.md).
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Why no algorithm of the operation keeps the promise, for people; empty: some may.
std::string WhyNotDeterministic(const Problem& problem);

// Why `algorithm` does not keep the promise, for people; empty: it does.
std::string WhyNotDeterministic(const Problem& problem, Algorithm algorithm);

// Whether the request keeps Determinism::kBatch by kFused alone: CUDA's fused kernels take it. Their sums over K
// have one order for all numbers of rows, and that of all other kernels is another.
bool OnlyFusedKeepsRows(const Problem& problem);

// Marks the products and norms of `plan` as the promise needs. INTERNAL, reason SUM_ORDER: the programs of
// Determinism::kBatch do not add in the order of ranks, or cut K.
Status KeepDeterminism(const Problem& problem, OperationPlan* plan);

}  // namespace tandem::plan
