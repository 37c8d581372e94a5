// File: build.h
//
// From a problem and an algorithm to one program per rank.
#pragma once

#include "daemon/planner/problem/problem.h"
#include "daemon/planner/types/operation_plan.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// Writes the programs of `problem` by `algorithm`, which can run it (WhyImpossible), with the norm behind its
// sum and the blocks of its kernels. `collective`: beside a product that `algorithm` does not overlap with;
// kAuto elsewhere. Of `plan` the programs and what follows from them are set (Builder::Finish), and the
// numbers of sums. The programs depend on these arguments alone.
Status BuildPrograms(const Problem& problem, Algorithm algorithm, Algorithm collective, OperationPlan* plan);

}  // namespace tandem::plan
