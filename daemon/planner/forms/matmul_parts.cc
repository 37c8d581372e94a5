#include "daemon/planner/forms/matmul_parts.h"

#include "daemon/planner/problem/scale_checks.h"

namespace tandem::plan {

View ScaleAView(const Problem& problem, int rank) {
  View view = problem.Slot(rank, problem.slots.scale_a);
  if (problem.scale_mode == ScaleMode::kTensorWise) return FirstElement(view);
  if (IsBlockWise(problem.scale_mode)) return view;
  return DropDim(view, static_cast<int>(view.extent.size()) - 1);
}

View ScaleBView(const Problem& problem, int rank, size_t i) {
  const View view = problem.Slot(rank, problem.slots.scale_b[i]);
  if (IsBlockWise(problem.scale_mode))
    return Elements(view) == 1 ? Packed(view.ref, view.dtype, {1, 1}) : view;
  if (Elements(view) == 1) return FirstElement(view);
  return DropDim(view, 0);
}

Range ScaleBlockRange(Range k) { return {k.begin / kScaleBlock, ScaleBlocks(k.length)}; }

MatmulStep WholeMatmul(const Problem& problem, int rank, size_t i) {
  const Slots& slots = problem.slots;
  MatmulStep step;
  step.a = problem.Slot(rank, slots.a);
  step.b = problem.Slot(rank, slots.b[i]);
  step.c = problem.Slot(rank, slots.c[i]);
  step.fast_accumulation = problem.request->fast_accumulation;
  step.block_scales = IsBlockWise(problem.scale_mode);
  if (slots.scale_a >= 0) {
    step.has_scale_a = true;
    step.scale_a = ScaleAView(problem, rank);
  }
  if (!slots.scale_b.empty()) {
    step.has_scale_b = true;
    step.scale_b = ScaleBView(problem, rank, i);
  }
  if (!slots.bias.empty()) {
    step.has_bias = true;
    step.bias = problem.Slot(rank, slots.bias[i]);
  }
  if (!slots.result_scale.empty()) {
    step.has_result_scale = true;
    step.result_scale = FirstElement(problem.Slot(rank, slots.result_scale[i]));
  }
  return step;
}

void SliceK(Range range, MatmulStep* step) {
  step->b = Slice(step->b, 0, range.begin, range.length);
  if (!step->block_scales) return;
  const Range blocks = ScaleBlockRange(range);
  step->scale_b = Slice(step->scale_b, 0, blocks.begin, blocks.length);
}

namespace {

// Cuts B and its scales to `range` of N.
void SliceColumns(Range range, MatmulStep* step) {
  const int64_t all = step->b.extent[1];
  step->b = Slice(step->b, 1, range.begin, range.length);
  if (!step->has_scale_b || step->scale_b.extent.empty()) return;
  if (!step->block_scales) {
    step->scale_b = Slice(step->scale_b, 0, range.begin, range.length);
  } else if (step->scale_b.extent[1] == all) {
    step->scale_b = Slice(step->scale_b, 1, range.begin, range.length);
  } else {
    const int64_t first = range.begin / kScaleBlock;
    const int64_t last = range.length > 0 ? (range.begin + range.length - 1) / kScaleBlock + 1 : first;
    step->scale_b = Slice(step->scale_b, 1, first, last - first);
    step->first_column = static_cast<int32_t>(range.begin % kScaleBlock);
  }
}

}  // namespace

MatmulStep PartialMatmul(const Problem& problem, int rank, int dim, Range range, const View& c) {
  MatmulStep step = WholeMatmul(problem, rank, 0);
  step.has_bias = step.has_result_scale = false;
  step.bias = step.result_scale = View{};
  step.c = c;
  const bool columns = dim == static_cast<int>(step.a.extent.size()) - 1;
  if (columns) {
    SliceColumns(range, &step);
  } else {
    step.a = Slice(step.a, dim, range.begin, range.length);
    if (step.has_scale_a && problem.scale_mode != ScaleMode::kTensorWise) {
      step.scale_a = Slice(step.scale_a, dim, range.begin, range.length);
    }
  }
  return step;
}

bool HasEpilogue(const Problem& problem) {
  return !problem.slots.bias.empty() || !problem.slots.result_scale.empty();
}

void AddEpilogue(const Problem& problem, int rank, int dim, ReduceStep* sum, size_t i) {
  const Slots& slots = problem.slots;
  if (!slots.bias.empty()) {
    sum->has_bias = true;
    sum->bias = problem.Slot(rank, slots.bias[i]);
    const int last = static_cast<int>(sum->dst.extent.size()) - 1;
    if (dim == last) {
      const int64_t length = sum->bias.extent[0] / problem.world_size;
      sum->bias = Slice(sum->bias, 0, rank * length, length);
    }
  }
  if (!slots.result_scale.empty()) {
    sum->has_result_scale = true;
    sum->result_scale = FirstElement(problem.Slot(rank, slots.result_scale[i]));
  }
}

void SetUnfusedNumbers(const Problem& problem, Algorithm collective, bool rounds_again, OperationPlan* plan) {
  const bool by_nccl = collective == Algorithm::kNccl;
  plan->wire_type = DTypeName(problem.wire);
  plan->reduction_order = by_nccl ? "NCCL's" : "rank order, fp32";
  plan->deterministic = !by_nccl;
  // A partial sum is rounded to the wire type, the sum once more (NCCL's at each hop), and again where bias
  // or scale follow.
  const int sums = by_nccl ? problem.world_size : 2;
  plan->roundings = problem.wire == DType::kF32 ? 1 : sums + (rounds_again ? 1 : 0);
}

}  // namespace tandem::plan
