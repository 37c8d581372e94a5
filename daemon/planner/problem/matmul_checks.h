// File: matmul_checks.h
//
// The rules of requests with a matmul: shapes of A, B and C, dtypes, scales by their shape, bias and result
// scale.
#pragma once

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Checks the operands of a matmul operation and fills dim, scale mode, wire type, extents and message bytes.
Status FillMatmul(Problem* problem);

}  // namespace tandem::plan
