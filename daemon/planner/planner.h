// File: planner.h
//
// The planner: from all ranks' requests for one operation to one program per rank, with the reason for the
// algorithm chosen and against each other one. Pure: no GPU, no process, no clock. Thread-safe: no state but
// the tuning table that the caller passes.
#pragma once

#include <span>

#include "daemon/planner/types/operation_plan.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// Plans `requests` (one per rank, in rank order; fields that must agree have been compared by
// CompareRequests). INVALID_ARGUMENT names the field that is wrong; FAILED_PRECONDITION carries every
// algorithm's reason when the asked algorithm cannot run or on_unfused is kError and no fused one can.
// FAILED_PRECONDITION with detail.field "placement" when the client must run the plan and cannot:
// detail.reason is CheckOneKernel's or VerifyPrograms'.
Result<OperationPlan> MakePlan(std::span<const OpRequest> requests, const GroupContext& group);

// Checks that the ranks' requests agree where they must (docs/protocol.md lists the fields). INVALID_ARGUMENT
// with detail.reason "FIELD_MISMATCH" and detail.field names the field and each rank's value.
Status CompareRequests(std::span<const OpRequest> requests);

}  // namespace tandem::plan
