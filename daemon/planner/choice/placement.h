// File: gpu_sharing.h
//
// Checks whether the ranks' own streams can run a plan (docs/client-placement.md).
#pragma once

#include <span>
#include <vector>

#include "daemon/planner/forms/client_form.h"
#include "daemon/planner/types/operation_plan.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// True if a program has the SMs do something. One that has not loses nothing where client and engine take
// turns: copy engines are never sliced.
bool RunsKernels(const RankProgram& program);

// OK if the client can run `plan`: every rank's program is one kernel that meets the peers, and the programs
// are proven without an engine's start. Else FAILED_PRECONDITION with detail.field "placement", and the
// reason and message of the check that failed.
Status CheckClientPlacement(const OperationPlan& plan, std::span<const OpRequest> requests,
                            ClientKernels kernels);

// The algorithms of `plan.refused` that can run, the fastest by measured or predicted time first.
std::vector<Algorithm> OtherAlgorithms(const OperationPlan& plan);

}  // namespace tandem::plan
