#include "daemon/planner/families/build.h"

#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/determinism.h"
#include "program/kernel_phases.h"

namespace tandem::plan {
namespace {

Status BuildSteps(const Problem& problem, Algorithm algorithm, Algorithm collective, OperationPlan* plan) {
  const Op op = problem.request->op;
  switch (op) {
    case Op::kBarrier:
    case Op::kEmpty:
      return algorithm == Algorithm::kNccl ? BuildNccl(problem, plan) : BuildBarrier(problem, plan);
    case Op::kSendReceive: return BuildSendReceive(problem, plan);
    case Op::kAsyncInputMatmul: return BuildAsyncInputMatmul(problem, plan);
    case Op::kAllGatherMatmul: return BuildAllGatherMatmul(problem, algorithm, collective, plan);
    case Op::kMatmulReduceScatter: return BuildMatmulReduceScatter(problem, algorithm, collective, plan);
    case Op::kMatmulAllReduce: return BuildMatmulAllReduce(problem, algorithm, collective, plan);
    default: break;
  }
  if (problem.world_size == 1) return BuildLocalCollective(problem, plan);
  if (algorithm == Algorithm::kNccl) return BuildNccl(problem, plan);
  if (op == Op::kAllReduce) return BuildAllReduce(problem, algorithm, plan);
  if (op == Op::kBroadcast || op == Op::kReduce) return BuildRooted(problem, algorithm, plan);
  return BuildExchange(problem, algorithm, plan);
}

}  // namespace

Status BuildPrograms(const Problem& problem, Algorithm algorithm, Algorithm collective, OperationPlan* plan) {
  TANDEM_RETURN_IF_ERROR(BuildSteps(problem, algorithm, collective, plan));
  AppendNorm(problem, plan);
  PlanKernels(&plan->programs, problem.group->kernel_sms);
  TANDEM_RETURN_IF_ERROR(KeepDeterminism(problem, plan));
  ChooseNormKernel(plan);
  return Status::Ok();
}

}  // namespace tandem::plan
