// File: matmul_small.h
//
// Products of few rows: the whole product, and one kernel a rank for the whole collective before or after it. No NCCL and no
// copy engine, whose start costs more than such a product; nothing overlaps.
#pragma once

#include <string>

#include "daemon/planner/planner.h"
#include "daemon/planner/problem.h"

namespace tandem::plan {

// Empty when kLowLatency can run the fused operation of `problem`, else why not.
std::string WhyNotSmall(const Problem& problem);

// kLowLatency of an operation with a matmul.
Status BuildSmallMatmul(const Problem& problem, Plan* plan);

}  // namespace tandem::plan
