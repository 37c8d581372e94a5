// File: row_family.h
//
// Families: one plan for every number of rows up to a bound. PlanRows finds the table, which says the
// algorithm for each number, and proves members of it. MakeMember (members/member.h) makes the plan of one
// launch from it.
//
// Between two numbers of rows whose plans have one structure, everything in a program follows the rows: sizes
// and offsets grow by whole elements, and parts by balanced or aligned cuts. A range has one structure. Its
// plans are proven where these cuts change: at both ends, beside them, and around multiples of the sizes that
// tiles and cuts have. planner_rows_test.cc compares 10^4 members with plans made for their shape.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/row_requests.h"
#include "daemon/planner/types/operation_plan.h"
#include "daemon/planner/types/row_table.h"
#include "tandem/status.h"

namespace tandem::plan {

// The table of `requests` for 0 to `max_rows` rows in `group`: for each number the algorithm that a plan of
// that shape would take if the client had to run it. INVALID_ARGUMENT, field "max_rows": below one unit, or
// no multiple of it. The errors of MakePlan with placement kClient. INTERNAL: a member could not be proven;
// it names the number of rows.
Result<RowTable> PlanRows(const RowRequests& requests, int64_t max_rows, const GroupContext& group);

// The numbers of rows of `table` whose members PlanRows proves, ascending.
std::vector<int64_t> RowsToProve(const RowTable& table);

// MakePlan for requests with max_rows: the plan of the bound, with the table and memory for all numbers of
// rows. FAILED_PRECONDITION, field "placement": engines run plans of one shape only.
Result<OperationPlan> MakeFamily(std::span<const OpRequest> requests, const GroupContext& group);

}  // namespace tandem::plan
