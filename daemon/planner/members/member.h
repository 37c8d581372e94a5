// File: member.h
//
// A family's member: the plan for one number of rows. Every rank makes it by itself, from the family's table
// and its own request, and all ranks get the same.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/planner/types/operation_plan.h"
#include "daemon/planner/types/row_table.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// Grows with every change by which a member's programs could differ: ranks make them by this version alike.
// tests/source/test_handover_versions.py lists the sources that decide about them, and finds their changes.
inline constexpr uint32_t kMembersVersion = 3;

// The plan for `rows` rows, placed in the client: by its range's algorithm, or by the first other one of the
// table that can run it. `requests`: by rank, for `rows` rows (RowRequests::At). Reasons and predictions are
// left out. The errors of RowTable::Find; FAILED_PRECONDITION: no algorithm of the table can run it.
Result<OperationPlan> MakeMember(const RowTable& table, std::span<const OpRequest> requests,
                                 const GroupContext& group, int64_t rows);

}  // namespace tandem::plan
