// File: feasibility.h
//
// Which algorithms can run a problem at all, apart from what they cost.
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Why `algorithm` cannot run `problem`, for people; empty: it can. kUnfused can always run: whether a
// collective beside the product can is asked apart.
std::string WhyImpossible(const Problem& problem, Algorithm algorithm);

// Empty when kLowLatency can run the fused operation of `problem`, else why not. For few rows: no NCCL and no
// copy engine, whose start costs more than such a product.
std::string WhyNotSmall(const Problem& problem);

}  // namespace tandem::plan
