// Matmul, then all-reduce of the product: unfused, or two-shot on tiles: every tile has an owner that sums it
// and sends the sum to all, while the next tiles are multiplied. Tiles are cut by rows and need not be equal,
// so any M works.
#include <algorithm>
#include <optional>

#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Tiles that each rank owns: two, so that the first one's sum overlaps the second one's matmuls.
constexpr int kTilesPerOwner = 2;

// The product, then `collective`. Returns whether sums are rounded before bias and result scale.
bool UnfusedAllReduce(const Problem& problem, Algorithm collective, Builder* builder) {
  const int world = problem.world_size;
  const bool by_nccl = collective == Algorithm::kNccl,
             kernel = !by_nccl && collective != Algorithm::kCopyEngine;
  const View c = problem.Slot(0, problem.slots.c[0]);
  // The product and the sum lie in C if C can have them.
  const bool into_output = c.dtype == problem.wire && IsContiguous(c);
  const View product = Packed(Ref{}, problem.wire, c.extent);
  const uint64_t staged = builder->ReserveSteady(into_output ? 0 : Bytes(product));
  const bool packets_twice = collective == Algorithm::kLowLatency && LowLatencyShots(problem) == 2;
  const int shots =
      collective == Algorithm::kTwoShot || collective == Algorithm::kCopyEngine || packets_twice ? 2 : 1;
  AllReduceViews views;
  views.mean = problem.mean;
  views.in_place = into_output && shots == 2 && problem.symmetric(problem.slots.c[0]);
  views.copy_engine = !kernel;
  std::optional<AllReduceSteps> steps;
  if (!by_nccl) steps.emplace(product, product, shots, views.in_place, builder);
  for (int r = 0; r < world; ++r) {
    const View own =
        into_output ? problem.Slot(r, problem.slots.c[0]) : PackedLike(product, builder->Steady(r, staged));
    views.in.push_back(own);
    views.out.push_back(own);
    if (Elements(own) > 0) {
      builder->Multiply(r, 0, PartialMatmul(problem, r, 0, {0, own.extent[0]}, own), "gemm");
    }
    if (by_nccl) {
      NcclStep step;
      step.kind = NcclKind::kAllReduce;
      step.reduce_op = problem.request->reduce_op;
      step.in = step.out = own;
      builder->Add(r, 0, std::move(step), "all-reduce");
    } else if (kernel) {
      builder->BeginCollective(r, 0, collective, Op::kAllReduce, own, own, problem.request->reduce_op,
                               packets_twice ? 2 : 1, SendsDensePackets(problem));
    }
  }
  if (steps) steps->Write(views);
  for (int r = 0; r < world; ++r) {
    if (kernel) builder->EndCollective(r);
    if (into_output && !HasEpilogue(problem)) continue;
    ReduceStep finish;
    finish.sources = {views.out[static_cast<size_t>(r)]};
    finish.dst = problem.Slot(r, problem.slots.c[0]);
    AddEpilogue(problem, r, -1, &finish);
    builder->Reduce(r, 0, std::move(finish), "bias and scale");
  }
  return !into_output || HasEpilogue(problem);
}

// `problem` with A, C and A's row scales as matrices, so that tiles are ranges of all rows and lie as
// matrices too; `requests` are its. The same problem where one of them is none.
Problem WithMatrices(const Problem& problem, std::vector<OpRequest>* requests) {
  std::vector<int> slots = {problem.slots.a, problem.slots.c[0]};
  if (problem.slots.scale_a >= 0 && problem.scale_mode != ScaleMode::kTensorWise)
    slots.push_back(problem.slots.scale_a);
  const bool fold = std::all_of(slots.begin(), slots.end(), [&](int slot) {
    const View view = problem.Slot(0, slot);
    return Elements(view) > 0 && HasOnePitch(view);
  });
  if (!fold) return problem;
  requests->assign(problem.requests.begin(), problem.requests.end());
  for (int slot : slots) {
    const View folded = FoldedRows(problem.Slot(0, slot));
    for (OpRequest& request : *requests) {
      TensorSpec& spec = request.operands[static_cast<size_t>(slot)].spec;
      spec.shape = folded.extent;
      spec.strides = folded.stride;
    }
  }
  Problem matrices = problem;
  matrices.requests = *requests;
  matrices.request = &requests->front();
  return matrices;
}

// Two-shot on tiles. Lane 0 sums, sends the sums and ends the program; the others (alone: lane 0 too)
// multiply and send.
class TiledTwoShot {
 public:
  TiledTwoShot(const Problem& problem, Builder* builder)
      : problem_(problem),
        builder_(builder),
        world_(problem.world_size),
        c_(problem.Slot(0, problem.slots.c[0])) {
    // Where rows have several dimensions they are cut along the longest, which keeps tiles strided boxes.
    dim_ = static_cast<int>(std::max_element(c_.extent.begin(), c_.extent.end() - 1) - c_.extent.begin());
    in_output_ = c_.dtype == problem.wire;
    in_place_ = problem.symmetric(problem.slots.c[0]);
    View largest = Slice(c_, dim_, 0, Tile(0, 0).length);
    const uint64_t result_bytes = Bytes(largest);
    largest.dtype = problem.wire;
    const uint64_t partial_bytes = Bytes(largest);
    multipliers_ = std::max(1, builder->lanes() - 1);
    first_multiplier_ = builder->lanes() > 1 ? 1 : 0;
    for (int i = 0; i < multipliers_; ++i) stage_.push_back(builder->Reserve(partial_bytes));
    for (int i = 0; i < kTilesPerOwner; ++i) {
      own_.push_back(builder->Reserve(in_output_ ? 0 : partial_bytes));
      partials_.emplace_back(builder, partial_bytes);
      results_.emplace_back(builder, in_place_ ? 0 : result_bytes);
    }
    sent_ = builder->Signals(kTilesPerOwner);
    summed_ = builder->Signals(kTilesPerOwner);
  }

  void Write(int r) {
    for (int i = 0; i < kTilesPerOwner; ++i) {
      uint32_t own = Builder::kNone;
      for (int j = 0; j < world_; ++j) {
        const int owner = (r + j + 1) % world_;
        const uint32_t step = MultiplyAndSend(r, (i + j) % multipliers_, owner, i);
        if (owner == r) own = step;
      }
      SumAndSend(r, i, own);
    }
    for (int i = 0; i < kTilesPerOwner; ++i) {
      for (int j = 1; j < world_; ++j) {
        const int owner = (r + j) % world_;
        builder_->Wait(r, kSumLane, owner, summed_ + i, Text("result of ", owner));
        const View tile = Out(r, owner, i);
        if (!in_place_) {
          builder_->Copy(r, kSumLane, PackedLike(tile, results_[i].At(r, owner)), tile, true, "copy out");
        }
      }
    }
  }

 private:
  Range Tile(int owner, int i) const {
    return BalancedPart(c_.extent[dim_], world_ * kTilesPerOwner, i * world_ + owner);
  }
  View Out(int rank, int owner, int i) const {
    const Range tile = Tile(owner, i);
    return Slice(problem_.Slot(rank, problem_.slots.c[0]), dim_, tile.begin, tile.length);
  }
  // Packed, in the wire type.
  View Partial(int owner, int i, const Ref& ref) const {
    View shape = Slice(c_, dim_, 0, Tile(owner, i).length);
    return Packed(ref, problem_.wire, shape.extent);
  }
  View OwnPartial(int rank, int i) const {
    return in_output_ ? Out(rank, rank, i) : Partial(rank, i, builder_->Workspace(rank, own_[i]));
  }

  uint32_t MultiplyAndSend(int r, int multiplier, int owner, int i) {
    const int lane = first_multiplier_ + multiplier;
    const View product =
        owner == r ? OwnPartial(r, i) : Partial(owner, i, builder_->Workspace(r, stage_[multiplier]));
    uint32_t step = Builder::kNone;
    if (Elements(product) > 0) {
      step = builder_->Multiply(r, lane, PartialMatmul(problem_, r, dim_, Tile(owner, i), product),
                                Text("gemm tile ", i, " of ", owner));
    }
    if (owner != r) {
      builder_->Copy(r, lane, product, Partial(owner, i, partials_[i].At(owner, r)), true,
                     Text("tile to ", owner));
      builder_->Signal(r, lane, owner, sent_ + i);
    }
    return step;
  }

  void SumAndSend(int r, int i, uint32_t own_matmul) {
    ReduceStep sum;
    sum.dst = Out(r, r, i);
    sum.scale = problem_.mean;
    for (int source = 0; source < world_; ++source) {
      if (source != r) builder_->Wait(r, kSumLane, source, sent_ + i, Text("tile from ", source));
      sum.sources.push_back(source == r ? OwnPartial(r, i) : Partial(r, i, partials_[i].At(r, source)));
    }
    AddEpilogue(problem_, r, -1, &sum);
    const View result = sum.dst;
    builder_->Reduce(r, kSumLane, std::move(sum), "sum in rank order", {own_matmul});
    // Every peer has sent a tile in this launch, so its symmetric output may be written.
    for (int j = 1; j < world_; ++j) {
      const int peer = (r + j) % world_;
      builder_->Copy(r, kSumLane, result,
                     in_place_ ? OnRank(result, peer) : PackedLike(result, results_[i].At(peer, r)), true,
                     Text("result to ", peer));
      builder_->Signal(r, kSumLane, peer, summed_ + i);
    }
  }

  const Problem& problem_;
  Builder* builder_;
  int world_;
  View c_;  // rank 0's output, for shapes
  int dim_ = 0;
  bool in_output_ = false;  // own partial sums lie in the output
  bool in_place_ = false;   // peers write the output
  static constexpr int kSumLane = 0;
  int multipliers_ = 1;
  int first_multiplier_ = 0;                   // its lane; the others' follow
  std::vector<uint64_t> stage_, own_;          // by multiplier, by tile
  std::vector<PeerSlots> partials_, results_;  // by tile
  int sent_ = 0, summed_ = 0;
};

}  // namespace

Status BuildMatmulAllReduce(const Problem& problem, Algorithm algorithm, Algorithm collective,
                            OperationPlan* plan) {
  const int world = problem.world_size;
  plan->wire_type = DTypeName(problem.wire);
  plan->reduction_order = "rank order, fp32";
  plan->roundings = problem.wire == DType::kF32 ? 1 : 2;
  if (world == 1) {
    Builder builder(1, 1);
    const View c = problem.Slot(0, problem.slots.c[0]);
    const bool into_output = c.dtype == problem.wire;
    const uint64_t staged = builder.Reserve(into_output ? 0 : static_cast<uint64_t>(Elements(c)) * 4);
    const View own = into_output ? c : Packed(builder.Workspace(0, staged), problem.wire, c.extent);
    if (Elements(c) > 0)
      builder.Multiply(0, 0, PartialMatmul(problem, 0, 0, {0, own.extent[0]}, own), "gemm");
    ReduceStep sum;
    sum.dst = c;
    sum.sources = {own};
    AddEpilogue(problem, 0, -1, &sum);
    if (!into_output || HasEpilogue(problem)) builder.Reduce(0, 0, std::move(sum), "bias and scale");
    return builder.Finish(plan);
  }
  if (!Overlaps(algorithm)) {
    Builder builder(world, 1, 32, problem.in_client());
    const bool again = UnfusedAllReduce(problem, collective, &builder);
    SetUnfusedNumbers(problem, collective, again, plan);
    return builder.Finish(plan);
  }
  if (algorithm == Algorithm::kFused) return BuildFusedMatmulAllReduce(problem, plan);
  Builder builder(world, problem.request->lanes > 0 ? problem.request->lanes : 3);
  std::vector<OpRequest> requests;
  const Problem matrices = WithMatrices(problem, &requests);
  TiledTwoShot tiles(matrices, &builder);
  if (builder.InBulk()) builder.Enter();
  for (int r = 0; r < world; ++r) tiles.Write(r);
  plan->steps = world * kTilesPerOwner;
  return builder.Finish(plan);
}

}  // namespace tandem::plan
