#include "daemon/planner/matmul_small.h"

#include "daemon/planner/choice.h"
#include "daemon/planner/families.h"
#include "daemon/planner/kernel_phases.h"
#include "daemon/planner/low_latency.h"
#include "daemon/planner/matmul_parts.h"
#include "daemon/planner/text.h"

namespace tandem::plan {
namespace {

// Of the gathered A, or the whole product in its wire type: what is staged for it fits into the workspace.
constexpr uint64_t kMostBytes = uint64_t{8} << 20;
// Up to here packets were faster than kernels with flags of their own (bounds.cc).
constexpr uint64_t kMostPacketBytes = uint64_t{256} << 10;

// A place in the workspace, which these programs never outgrow.
Ref WorkspaceAt(int rank, uint64_t offset) {
  Ref ref;
  ref.rank = static_cast<uint8_t>(rank);
  ref.offset = offset;
  return ref;
}

// The kernel of a collective whose pieces are `piece_bytes` each.
Algorithm KernelOf(const Problem& problem, PacketPlan::Shape shape, uint64_t piece_bytes, Algorithm otherwise) {
  const bool packets = problem.message_bytes <= kMostPacketBytes &&
                       piece_bytes <= MaxPacketPieceBytes(shape, problem.world_size);
  return packets ? Algorithm::kLowLatency : otherwise;
}

void Gather(const Problem& problem, Builder* builder) {
  const int world = problem.world_size;
  const View shard = problem.Slot(0, problem.slots.a);
  std::vector<int64_t> shape = shard.extent;
  shape[0] *= world;
  const uint64_t at = builder->Reserve(Bytes(shard) * static_cast<uint64_t>(world));
  const int sent = builder->Signals();
  const Algorithm kernel = KernelOf(problem, PacketPlan::Shape::kGather, Bytes(shard), Algorithm::kSm);
  const auto whole = [&](int rank) { return Packed(WorkspaceAt(rank, at), shard.dtype, shape); };
  const auto place = [&](int rank, int source) {
    return Slice(whole(rank), 0, source * shard.extent[0], shard.extent[0]);
  };
  for (int r = 0; r < world; ++r) {
    const View own = problem.Slot(r, problem.slots.a);
    builder->BeginCollective(r, 0, kernel, Op::kAllGather, own, whole(r), ReduceOp::kSum);
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder->Copy(r, 0, own, place(peer, r), false, Text("push to ", peer));
      builder->Signal(r, 0, peer, sent);
    }
    builder->Copy(r, 0, own, place(r, r), false, "own shard");
    for (int j = 1; j < world; ++j) builder->Wait(r, 0, (r + j) % world, sent);
    builder->EndCollective(r);
    for (size_t c = 0; c < problem.slots.c.size(); ++c) {
      MatmulStep step = WholeMatmul(problem, r, c);
      step.a = whole(r);
      builder->Add(r, 0, std::move(step), "gemm");
    }
    if (problem.slots.gathered_a >= 0) {
      builder->Copy(r, 0, whole(r), problem.Slot(r, problem.slots.gathered_a), false, "return gathered A");
    }
  }
}

// The product, and after the collective what the sum still needs.
class Summed {
 public:
  Summed(const Problem& problem, Builder* builder) : problem_(problem), builder_(builder) {
    const View c = problem.Slot(0, problem.slots.c[0]);
    product_ = Packed(Ref{}, problem.wire, c.extent);
    scatters_ = problem.request->op == Op::kMatmulReduceScatter;
    if (scatters_) product_.extent[0] *= problem.world_size;
    product_ = Packed(Ref{}, problem.wire, product_.extent);
    into_output_ = c.dtype == problem.wire && IsContiguous(c) && !HasEpilogue(problem);
    product_at_ = builder->Reserve(Bytes(product_));
    sum_at_ = builder->Reserve(into_output_ ? 0 : Bytes(product_));
  }
  View Product(int rank) const { return PackedLike(product_, WorkspaceAt(rank, product_at_)); }
  View Sum(int rank) const {
    const View c = problem_.Slot(rank, problem_.slots.c[0]);
    return into_output_ ? c : Packed(WorkspaceAt(rank, sum_at_), problem_.wire, c.extent);
  }
  void Multiply(int r) {
    builder_->Add(r, 0, PartialMatmul(problem_, r, 0, {0, product_.extent[0]}, Product(r)), "gemm");
  }
  void Finish(int r) {
    if (into_output_) return;
    ReduceStep finish;
    finish.sources = {Sum(r)};
    finish.dst = problem_.Slot(r, problem_.slots.c[0]);
    AddEpilogue(problem_, r, scatters_ ? 0 : -1, &finish);
    builder_->Reduce(r, 0, std::move(finish), "bias and scale");
  }
  bool into_output() const { return into_output_; }

 private:
  const Problem& problem_;
  Builder* builder_;
  View product_;  // shape
  bool scatters_ = false, into_output_ = false;
  uint64_t product_at_ = 0, sum_at_ = 0;
};

void Scatter(const Problem& problem, Builder* builder, bool* rounds_again) {
  const int world = problem.world_size;
  Summed summed(problem, builder);
  *rounds_again = !summed.into_output();
  const int64_t rows = problem.Slot(0, problem.slots.c[0]).extent[0];
  const auto part = [&](int rank, int owner) { return Slice(summed.Product(rank), 0, owner * rows, rows); };
  const uint64_t bytes = Bytes(part(0, 0));
  const PeerSlots slots(builder, bytes);
  const int sent = builder->Signals();
  const Algorithm kernel = KernelOf(problem, PacketPlan::Shape::kSum, bytes, Algorithm::kSm);
  for (int r = 0; r < world; ++r) {
    summed.Multiply(r);
    builder->BeginCollective(r, 0, kernel, Op::kReduceScatter, summed.Product(r), summed.Sum(r),
                             problem.request->reduce_op);
    ReduceStep sum;
    sum.dst = summed.Sum(r);
    sum.scale = problem.mean;
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder->Copy(r, 0, part(r, peer), PackedLike(part(r, peer), slots.At(peer, r)), false, Text("push to ", peer));
      builder->Signal(r, 0, peer, sent);
    }
    for (int source = 0; source < world; ++source) {
      if (source != r) builder->Wait(r, 0, source, sent);
      sum.sources.push_back(source == r ? part(r, r) : PackedLike(part(r, r), slots.At(r, source)));
    }
    builder->Reduce(r, 0, std::move(sum), "sum in rank order");
    builder->EndCollective(r);
    summed.Finish(r);
  }
}

void AllReduce(const Problem& problem, Builder* builder, bool* rounds_again) {
  const int world = problem.world_size;
  Summed summed(problem, builder);
  *rounds_again = !summed.into_output();
  const uint64_t bytes = problem.message_bytes;
  const auto parts = static_cast<uint64_t>(world);
  const bool one_shot = LowLatencyShots(problem) == 1;
  // Two shots cut at multiples of 16 bytes: each owner needs a part.
  const bool can_two = bytes >= 16 * parts * parts;
  Algorithm kernel = one_shot ? KernelOf(problem, PacketPlan::Shape::kSum, bytes, Algorithm::kOneShot)
                              : KernelOf(problem, PacketPlan::Shape::kTwoShot, bytes / parts + 16, Algorithm::kTwoShot);
  if (!one_shot && !can_two) kernel = Algorithm::kOneShot;
  if (kernel == Algorithm::kTwoShot && bytes <= kOneShotMaxBytes) kernel = Algorithm::kOneShot;
  AllReduceViews views;
  views.mean = problem.mean;
  for (int r = 0; r < world; ++r) {
    views.in.push_back(summed.Product(r));
    views.out.push_back(summed.Sum(r));
  }
  const bool two_shots = kernel == Algorithm::kTwoShot || (kernel == Algorithm::kLowLatency && !one_shot);
  for (int r = 0; r < world; ++r) {
    summed.Multiply(r);
    builder->BeginCollective(r, 0, kernel, Op::kAllReduce, views.in[static_cast<size_t>(r)],
                             views.out[static_cast<size_t>(r)], problem.request->reduce_op, two_shots ? 2 : 1);
  }
  two_shots ? AddTwoShot(views, builder) : AddOneShot(views, builder);
  for (int r = 0; r < world; ++r) {
    builder->EndCollective(r);
    summed.Finish(r);
  }
}

}  // namespace

std::string WhyNotSmall(const Problem& problem) {
  if (!problem.group->packet_kernels) return "needs the CUDA backend's kernels";
  if (problem.world_size == 1) return "one rank: nothing to communicate";
  if (problem.dim != 0 || problem.last_dim()) return "its pieces are rows: the dimension must be the first";
  if (problem.rows == 0 || problem.n == 0 || problem.k == 0) return "an empty product";
  if (problem.message_bytes > kMostBytes) {
    return Text(BytesText(problem.message_bytes), " is above its bound of ", BytesText(kMostBytes));
  }
  if (problem.request->op != Op::kAllGatherMatmul) return {};
  if (problem.scale_mode == ScaleMode::kRowWiseSharded) return "A's scales travel too: it gathers one tensor";
  for (int r = 0; r < problem.world_size; ++r) {
    if (!IsContiguous(problem.Slot(r, problem.slots.a))) return "A must be contiguous";
  }
  return {};
}

Status BuildSmallMatmul(const Problem& problem, Plan* plan) {
  Builder builder(problem.world_size, 1);
  const bool exact = problem.wire == DType::kF32;
  bool rounds_again = false;
  if (problem.request->op == Op::kAllGatherMatmul) {
    Gather(problem, &builder);
    plan->roundings = 1;
    if (problem.slots.gathered_a >= 0) plan->gathered_a_bytes = problem.message_bytes;
    return builder.Finish(plan);
  }
  problem.request->op == Op::kMatmulAllReduce ? AllReduce(problem, &builder, &rounds_again)
                                              : Scatter(problem, &builder, &rounds_again);
  plan->wire_type = DTypeName(problem.wire);
  plan->reduction_order = "rank order, fp32";
  plan->roundings = exact ? 1 : rounds_again ? 3 : 2;
  return builder.Finish(plan);
}

}  // namespace tandem::plan
