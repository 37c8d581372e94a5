#include "daemon/planner/members/member.h"

#include <string>
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

Result<OperationPlan> MakeMember(const RowTable& table, std::span<const OpRequest> requests,
                                 const GroupContext& group, int64_t rows) {
  TANDEM_ASSIGN_OR_RETURN(const RowRange* const range, table.Find(rows));
  TANDEM_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(requests, group));
  Result<OperationPlan> plan = MakeBy(*range, problem);
  for (const RowRange& other : table.ranges) {
    if (plan.ok()) break;
    if (&other == range) continue;
    if (Result<OperationPlan> instead = MakeBy(other, problem); instead.ok()) plan = std::move(instead);
  }
  if (plan.ok()) return plan;
  return plan.status().WithContext(Text(rows, " rows"));
}

}  // namespace tandem::plan
