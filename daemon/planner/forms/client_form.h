// File: client_form.h
//
// The form of programs that the ranks' own streams can run (docs/client-placement.md).
#pragma once

#include "daemon/planner/types/operation_plan.h"
#include "tandem/status.h"

namespace tandem::plan {

// OK if every rank's program is one kernel that meets the peers, with work around it that `kernels` has.
// FAILED_PRECONDITION, reason NOT_ONE_KERNEL: it is not. Proves nothing about the programs, which takes
// longer than planning does.
Status CheckClientForm(const OperationPlan& plan, ClientKernels kernels);

}  // namespace tandem::plan
