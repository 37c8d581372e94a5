// The RMSNorm behind a sum, alike for every algorithm.
#include <string>
#include <utility>
#include <variant>

#include "common/op_tables.h"
#include "daemon/planner/cost/norm_cost.h"
#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/norm_form.h"
#include "program/text.h"

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

// Chooses the kernel of `norm`, which follows `before`; returns the choice in words.
std::string ChooseKernel(const Step& before, int world_size, NormStep* norm) {
  std::string why = WhyNormedApart(before, *norm, world_size);
  if (why.empty()) why = WhyNormedApartFaster(RowsOf(*norm), world_size);
  if (!why.empty()) return Text("a separate kernel: ", why);
  norm->row_blocks = FastestRowBlocks(*norm, std::get<CollectiveStep>(before.work).blocks, world_size);
  return Text("in the sum's kernel, ", norm->row_blocks, norm->row_blocks == 1 ? " block" : " blocks",
              " a row");
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

void ChooseNormKernel(OperationPlan* plan) {
  for (RankProgram& program : plan->programs) {
    for (size_t s = 1; s < program.steps.size(); ++s) {
      auto* norm = std::get_if<NormStep>(&program.steps[s].work);
      if (norm != nullptr) plan->norm = ChooseKernel(program.steps[s - 1], program.world_size, norm);
    }
  }
}

}  // namespace tandem::plan
