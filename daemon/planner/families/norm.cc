// The RMSNorm behind a sum, alike for every algorithm.
#include <utility>

#include "common/op_tables.h"
#include "daemon/planner/families/families.h"

namespace tandem::plan {
namespace {

void AddQuantization(const Problem& problem, int rank, NormStep* norm) {
  const Slots& slots = problem.slots;
  norm->has_quantized = true;
  norm->quantized = problem.Slot(rank, slots.quantized_output);
  norm->has_static_scale = slots.static_scale >= 0;
  if (norm->has_static_scale) norm->static_scale = problem.Slot(rank, slots.static_scale);
  norm->has_scales = slots.scale_output >= 0;
  if (norm->has_scales) norm->scales = problem.Slot(rank, slots.scale_output);
}

}  // namespace

void AppendNorm(const Problem& problem, OperationPlan* plan) {
  const Slots& slots = problem.slots;
  if (slots.norm_weight < 0) return;
  if (slots.residual >= 0) plan->rounding = NameOf(problem.request->rounding);
  for (RankProgram& program : plan->programs) {
    NormStep norm;
    norm.sum = norm.out = problem.Slot(program.rank, slots.output >= 0 ? slots.output : slots.c[0]);
    norm.weight = problem.Slot(program.rank, slots.norm_weight);
    norm.epsilon = problem.request->norm_epsilon;
    norm.has_residual = slots.residual >= 0;
    if (norm.has_residual) {
      norm.residual = problem.Slot(program.rank, slots.residual);
      norm.residual_out = problem.Slot(program.rank, slots.residual_output);
      norm.unrounded = problem.request->rounding == Rounding::kOnce;
    }
    if (slots.quantized_output >= 0) AddQuantization(problem, program.rank, &norm);
    if (Elements(norm.out) == 0) continue;
    // Behind the last step of every lane.
    Step step;
    std::vector<uint32_t> last(static_cast<size_t>(program.lanes), Builder::kNone);
    for (uint32_t s = 0; s < program.steps.size(); ++s) last[program.steps[s].lane] = s;
    for (size_t lane = 1; lane < last.size(); ++lane) {
      if (last[lane] != Builder::kNone) step.deps.push_back(last[lane]);
    }
    step.work = std::move(norm);
    step.label = "RMSNorm";
    program.steps.push_back(std::move(step));
  }
}

}  // namespace tandem::plan
