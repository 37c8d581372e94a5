// Fused for few rows: what one kernel does, as steps on lane 0.
//
// The exchange area has a slot for each rank that sends. In the expansion a rank's own slot, which nobody
// sends to, holds what is on its way to a peer, so it needs no more workspace than the kernel. Every rank
// waits for all its peers, or, if it owns none of an all-reduce's rows, for owners that have, so its end
// follows their start: no exchange closes the program.
#include "daemon/planner/families/skinny.h"

#include <algorithm>
#include <utility>

#include "daemon/planner/families/builder.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

class SkinnySteps {
 public:
  SkinnySteps(const Problem& problem, const SkinnyLayout& layout, Builder* builder)
      : problem_(problem),
        layout_(layout),
        builder_(builder),
        world_(problem.world_size),
        scales_travel_(problem.scale_mode == ScaleMode::kRowWiseSharded),
        area_(builder->Reserve(static_cast<uint64_t>(layout.area_bytes()))),
        sent_(builder->Signals()),
        summed_(layout.kind == SkinnyKind::kAllReduce ? builder->Signals() : sent_) {}

  // The step for the kernel of `rank`.
  SkinnyStep Kernel(int rank) const {
    SkinnyStep step;
    step.matmul = WholeMatmul(problem_, rank, 0);
    step.matmul.a = FoldedRows(step.matmul.a);
    step.matmul.c = FoldedRows(step.matmul.c);
    if (HasRowScales()) step.matmul.scale_a = Flatten(step.matmul.scale_a);
    step.area = area_;
    step.scales_travel = scales_travel_;
    step.most_ctas = MaxSkinnyCtas(problem_.group->kernel_sms);
    return step;
  }

  void Write(int rank) {
    const MatmulStep whole = Kernel(rank).matmul;
    builder_->BeginCollective(rank, 0, Algorithm::kFused, problem_.request->op, whole.a, whole.c,
                              ReduceOp::kSum);
    if (layout_.kind == SkinnyKind::kGather) {
      Gather(rank, whole);
    } else {
      Sum(rank, whole);
    }
    builder_->EndCollective(rank);
  }

 private:
  bool HasRowScales() const {
    return problem_.slots.scale_a >= 0 && problem_.scale_mode != ScaleMode::kTensorWise;
  }
  Range RowsOf(int rank) const { return {layout_.first_row(rank), layout_.rows_of(rank)}; }
  // The slot of `source` in `rank`'s area, as a matrix of rows of `owner`; `half` 1: of an all-reduce's sums.
  View SlotOf(int rank, int source, int owner, DType dtype, int64_t columns, int half = 0) const {
    const int64_t offset = half * layout_.behind_slots() + source * layout_.slot_bytes();
    return Packed(builder_->Workspace(rank, area_ + static_cast<uint64_t>(offset)), dtype,
                  {layout_.rows_of(owner), columns});
  }
  View ScalesOf(int rank, int source) const {
    const int64_t offset = layout_.behind_slots() + source * layout_.rows * 4;
    return Packed(builder_->Workspace(rank, area_ + static_cast<uint64_t>(offset)), DType::kF32,
                  {layout_.rows});
  }

  void Gather(int r, const MatmulStep& whole) {
    const auto shard = [&](int rank) { return SlotOf(rank, r, r, whole.a.dtype, layout_.k); };
    for (int j = 1; j < world_; ++j) {
      const int peer = (r - j + world_) % world_;
      builder_->Copy(r, 0, whole.a, shard(peer), true, Text("shard to ", peer));
      if (scales_travel_) builder_->Copy(r, 0, whole.scale_a, ScalesOf(peer, r), true, "its scales");
      builder_->Signal(r, 0, peer, sent_);
    }
    for (int j = 0; j < world_; ++j) {
      const int source = (r + j) % world_;
      const Range rows = RowsOf(source);
      MatmulStep step = whole;
      step.c = Slice(whole.c, 0, rows.begin, rows.length);
      if (HasRowScales() && !scales_travel_) step.scale_a = Slice(whole.scale_a, 0, rows.begin, rows.length);
      if (source != r) {
        builder_->Wait(r, 0, source, sent_, Text("shard ", source));
        step.a = SlotOf(r, source, source, whole.a.dtype, layout_.k);
        if (scales_travel_) step.scale_a = ScalesOf(r, source);
      }
      builder_->Add(r, 0, std::move(step), Text("gemm shard ", source));
    }
  }

  // This rank's partial sum of `owner`'s rows.
  MatmulStep Partial(const MatmulStep& whole, int owner, View target) const {
    const Range rows = RowsOf(owner);
    MatmulStep step = whole;
    step.has_bias = step.has_result_scale = false;
    step.bias = step.result_scale = View{};
    step.a = Slice(whole.a, 0, rows.begin, rows.length);
    if (HasRowScales()) step.scale_a = Slice(whole.scale_a, 0, rows.begin, rows.length);
    step.c = std::move(target);
    return step;
  }

  void Sum(int r, const MatmulStep& whole) {
    const bool all = layout_.kind == SkinnyKind::kAllReduce;
    const auto slot = [&](int rank, int source, int owner, int half = 0) {
      return SlotOf(rank, source, owner, whole.c.dtype, layout_.n, half);
    };
    const auto rows_of = [&](int rank) {
      return all ? Slice(whole.c, 0, RowsOf(rank).begin, RowsOf(rank).length) : whole.c;
    };
    for (int j = 1; j < world_; ++j) {
      const int owner = (r + j) % world_;
      if (layout_.rows_of(owner) == 0) continue;
      builder_->Add(r, 0, Partial(whole, owner, slot(r, r, owner)), Text("gemm rows of ", owner));
      builder_->Copy(r, 0, slot(r, r, owner), slot(owner, r, owner), true, Text("rows to ", owner));
      builder_->Signal(r, 0, owner, sent_);
    }
    if (layout_.rows_of(r) > 0) {
      ReduceStep sum;
      sum.dst = rows_of(r);
      builder_->Add(r, 0, Partial(whole, r, sum.dst), "gemm own rows");
      for (int source = 0; source < world_; ++source) {
        if (source != r) builder_->Wait(r, 0, source, sent_, Text("rows from ", source));
        sum.sources.push_back(source == r ? sum.dst : slot(r, source, r));
      }
      AddEpilogue(problem_, r, -1, &sum);
      builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    }
    for (int j = 1; j < world_ && all && layout_.rows_of(r) > 0; ++j) {
      const int peer = (r + j) % world_;
      builder_->Copy(r, 0, rows_of(r), slot(peer, r, r, 1), true, Text("result to ", peer));
      builder_->Signal(r, 0, peer, summed_);
    }
    for (int j = 1; j < world_ && all; ++j) {
      const int owner = (r + j) % world_;
      if (layout_.rows_of(owner) == 0) continue;
      builder_->Wait(r, 0, owner, summed_, Text("result of ", owner));
      builder_->Copy(r, 0, slot(r, owner, owner, 1), rows_of(owner), true, "copy out");
    }
  }

  const Problem& problem_;
  const SkinnyLayout layout_;
  Builder* builder_;
  const int world_;
  const bool scales_travel_;
  const uint64_t area_;
  const int sent_, summed_;
};

}  // namespace

Status BuildSkinny(const Problem& problem, const SkinnyLayout& layout, OperationPlan* plan) {
  Builder builder(problem.world_size, 1);
  SkinnySteps steps(problem, layout, &builder);
  for (int r = 0; r < problem.world_size; ++r) steps.Write(r);
  plan->steps = problem.world_size;
  TANDEM_RETURN_IF_ERROR(builder.Finish(plan));
  for (RankProgram& program : plan->programs) {
    auto& collective = std::get<CollectiveStep>(program.steps.front().work);
    collective.skinny = steps.Kernel(program.rank);
    // The kernel's words take the place of the expansion's, and are more.
    program.signal_count = std::max(program.signal_count, collective.first_signal + layout.words());
  }
  return Status::Ok();
}

}  // namespace tandem::plan
