#include "daemon/planner/members/row_table.h"

#include <algorithm>
#include <utility>

#include "daemon/planner/families/build.h"
#include "daemon/planner/forms/client_form.h"
#include "daemon/planner/forms/feasibility.h"
#include "daemon/planner/problem/problem.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// The plan of `problem` by the algorithm of `range`.
Result<OperationPlan> MakeBy(const RowRange& range, const Problem& problem) {
  if (std::string why = WhyImpossible(problem, range.algorithm); !why.empty()) {
    return FailedPrecondition(Text(AlgorithmName(range.algorithm), ": ", why));
  }
  OperationPlan plan;
  plan.op = problem.request->op;
  plan.algorithm = range.algorithm;
  plan.collective = range.collective;
  plan.placement = PlanPlacement::kClient;
  TANDEM_RETURN_IF_ERROR(BuildPrograms(problem, range.algorithm, range.collective, &plan));
  TANDEM_RETURN_IF_ERROR(CheckClientForm(plan, problem.group->client_kernels));
  return plan;
}

}  // namespace

Result<const RowRange*> RowTable::Find(int64_t rows) const {
  if (rows < 0) return FieldError("rows", Text(rows, " is negative"));
  if (rows > max_rows) {
    return OutOfRange(Text("rows: ", rows, " is above the family's bound of ", max_rows))
        .WithDetail({.reason = "ROWS_ABOVE_BOUND", .field = "rows", .limit = max_rows, .usage = rows});
  }
  if (rows % unit != 0) return FieldError("rows", Text(rows, " is no multiple of ", unit));
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), rows,
                       [](const RowRange& range, int64_t value) { return range.last < value; });
  if (found == ranges.end()) return Internal("a family's ranges end before its bound");
  return &*found;
}

Result<OperationPlan> MakeMember(const RowTable& table, const RowRequests& requests,
                                 const GroupContext& group, int64_t rows) {
  TANDEM_ASSIGN_OR_RETURN(const RowRange* const range, table.Find(rows));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> own, requests.At(rows));
  TANDEM_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(own, group));
  Result<OperationPlan> plan = MakeBy(*range, problem);
  for (const RowRange& other : table.ranges) {
    if (plan.ok()) break;
    if (&other == range) continue;
    if (Result<OperationPlan> instead = MakeBy(other, problem); instead.ok()) plan = std::move(instead);
  }
  if (plan.ok()) return plan;
  return plan.status().WithContext(Text(rows, " rows"));
}

std::string ListRows(const RowTable& table) {
  std::string text;
  int64_t first = 0;
  for (const RowRange& range : table.ranges) {
    text +=
        Text(first, first == range.last ? "" : Text(" - ", range.last), "  ", AlgorithmName(range.algorithm));
    if (range.collective != Algorithm::kAuto) text += Text(" (", AlgorithmName(range.collective), ")");
    text += Text("  ", MicrosecondsText(range.predicted_us), "  ", range.reason, "\n");
    first = range.last + table.unit;
  }
  return text;
}

}  // namespace tandem::plan
