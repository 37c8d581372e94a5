// File: norm_checks.h
//
// Checks of the operands of a norm behind a sum.
#pragma once

#include "daemon/planner/problem/problem.h"
#include "tandem/status.h"

namespace tandem::plan {

// INVALID_ARGUMENT about an operand or an attribute of the norm, if the problem has one. Its other fields are
// filled.
Status CheckNorm(const Problem& problem);

}  // namespace tandem::plan
