#include "daemon/planner/forms/determinism.h"

#include <variant>
#include <vector>

#include "common/op_tables.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

// Reductions of integers have the same bits in every order.
bool RoundsSums(const Problem& problem) {
  switch (problem.request->op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
    case Op::kReduce: return IsFloating(problem.operand(problem.slots.input).spec.dtype);
    case Op::kMatmulReduceScatter:
    case Op::kMatmulAllReduce: return true;
    default: return false;
  }
}

std::string Promise(const Problem& problem) {
  return Text("determinism = ", NameOf(problem.request->determinism), ": ");
}

void MarkProduct(bool fixed_order, MatmulStep* matmul) {
  matmul->repeatable = true;
  matmul->fixed_order = fixed_order;
}

void Mark(bool fixed_order, std::vector<Step>* steps) {
  for (Step& step : *steps) {
    if (auto* matmul = std::get_if<MatmulStep>(&step.work)) MarkProduct(fixed_order, matmul);
    if (auto* norm = std::get_if<NormStep>(&step.work)) norm->fixed_order = fixed_order;
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      Mark(fixed_order, &collective->expansion);
      if (collective->skinny) MarkProduct(fixed_order, &collective->skinny->matmul);
    }
  }
}

bool IsProductOfABatch(const Problem& problem) {
  return problem.request->determinism == Determinism::kBatch && problem.slots.a >= 0;
}

// A gather along K has a product for each rank's part of K.
bool GathersAlongK(const Problem& problem) {
  return problem.request->op == Op::kAllGatherMatmul && problem.last_dim() && problem.world_size > 1;
}

// Why a product of a batch does not run by `algorithm`: its bits would be others than another algorithm's.
std::string WhyNotInABatch(const Problem& problem, Algorithm algorithm) {
  if (OnlyFusedKeepsRows(problem)) {
    return algorithm == Algorithm::kFused
               ? std::string()
               : "its products run on other kernels than the fused ones, and their sums have another order";
  }
  const bool sums_apart = RoundsSums(problem) && !Overlaps(algorithm) && problem.wire != DType::kF32;
  const bool then_more = !problem.slots.bias.empty() || !problem.slots.result_scale.empty() ||
                         problem.operand(problem.slots.c[0]).spec.dtype != problem.wire;
  return sums_apart && then_more ? "it rounds the sum before bias, result scale and C's type" : "";
}

Status VerifyOrder(const Problem& problem, const OperationPlan& plan) {
  const bool product = problem.slots.a >= 0;
  if (!product && (problem.world_size == 1 || !RoundsSums(problem))) return Status::Ok();
  SumOrder order;
  order.k = product ? problem.k : 0;
  order.sums = RoundsSums(problem) && problem.world_size > 1;
  const bool rooted = problem.request->op == Op::kReduce;
  for (int r = 0; r < problem.world_size; ++r) {
    order.inputs.push_back(problem.Slot(r, product ? problem.slots.a : problem.slots.input));
    if (!product) order.outputs.push_back(problem.Slot(r, problem.slots.output));
    order.has_output.push_back(!rooted || r == problem.request->root);
  }
  if (!product) return VerifySumOrder(plan.programs, order);
  for (int slot : problem.slots.c) {
    order.outputs.clear();
    for (int r = 0; r < problem.world_size; ++r) order.outputs.push_back(problem.Slot(r, slot));
    TANDEM_RETURN_IF_ERROR(VerifyProductOrder(plan.programs, order));
  }
  return Status::Ok();
}

}  // namespace

bool OnlyFusedKeepsRows(const Problem& problem) {
  const GroupContext& group = *problem.group;
  return IsProductOfABatch(problem) && IsFusedOp(problem.request->op) && group.packet_kernels &&
         group.fused_kernels && WhyNoFusedKernel(problem).empty();
}

std::string WhyNotDeterministic(const Problem& problem) {
  if (!IsProductOfABatch(problem) || !GathersAlongK(problem)) return {};
  return Promise(problem) + "a gather along K multiplies each rank's part of K apart";
}

std::string WhyNotDeterministic(const Problem& problem, Algorithm algorithm) {
  const Determinism level = problem.request->determinism;
  if (level == Determinism::kOff) return {};
  if (std::string why = WhyNotDeterministic(problem); !why.empty()) return why;
  if (problem.world_size == 1) return {};
  if (algorithm == Algorithm::kNccl && RoundsSums(problem))
    return Promise(problem) + "NCCL promises no order of a sum";
  if (algorithm == Algorithm::kHybridCubeMesh && level == Determinism::kBatch && RoundsSums(problem))
    return Promise(problem) + "it adds within quads first, and other algorithms in the order of ranks";
  if (GathersAlongK(problem) && (algorithm == Algorithm::kPipeline || algorithm == Algorithm::kRing))
    return Promise(problem) + "each rank begins with its own part of K, and ranks differ in the last bits";
  if (!IsProductOfABatch(problem)) return {};
  const std::string why = WhyNotInABatch(problem, algorithm);
  return why.empty() ? why : Promise(problem) + why;
}

Status KeepDeterminism(const Problem& problem, OperationPlan* plan) {
  const Determinism level = problem.request->determinism;
  plan->determinism = level;
  if (level == Determinism::kOff) return Status::Ok();
  for (RankProgram& program : plan->programs) Mark(level == Determinism::kBatch, &program.steps);
  return level == Determinism::kBatch ? VerifyOrder(problem, *plan) : Status::Ok();
}

}  // namespace tandem::plan
