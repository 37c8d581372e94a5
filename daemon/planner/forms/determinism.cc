#include "daemon/planner/forms/determinism.h"

#include <variant>
#include <vector>

#include "common/op_tables.h"
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

void Mark(bool fixed_order, std::vector<Step>* steps) {
  for (Step& step : *steps) {
    if (auto* matmul = std::get_if<MatmulStep>(&step.work)) matmul->repeatable = true;
    if (auto* norm = std::get_if<NormStep>(&step.work)) norm->fixed_order = fixed_order;
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) Mark(fixed_order, &collective->expansion);
  }
}

}  // namespace

std::string WhyNotDeterministic(const Problem& problem) {
  if (problem.request->determinism != Determinism::kBatch || problem.slots.a < 0) return {};
  return Promise(problem) + "the tiles of a product, and so the order of its sums over K, depend on its rows";
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
  const bool along_k = problem.request->op == Op::kAllGatherMatmul && problem.last_dim();
  if (along_k && (algorithm == Algorithm::kPipeline || algorithm == Algorithm::kRing))
    return Promise(problem) + "each rank begins with its own part of K, and ranks differ in the last bits";
  return {};
}

Status KeepDeterminism(const Problem& problem, OperationPlan* plan) {
  const Determinism level = problem.request->determinism;
  plan->determinism = level;
  if (level == Determinism::kOff) return Status::Ok();
  for (RankProgram& program : plan->programs) Mark(level == Determinism::kBatch, &program.steps);
  if (level != Determinism::kBatch || problem.world_size == 1 || !RoundsSums(problem)) return Status::Ok();
  SumOrder order;
  const bool rooted = problem.request->op == Op::kReduce;
  for (int r = 0; r < problem.world_size; ++r) {
    order.inputs.push_back(problem.Slot(r, problem.slots.input));
    order.outputs.push_back(problem.Slot(r, problem.slots.output));
    order.has_output.push_back(!rooted || r == problem.request->root);
  }
  return VerifySumOrder(plan->programs, order);
}

}  // namespace tandem::plan
