// All-gather, reduce-scatter and all-to-all by pushing pieces: each rank copies a piece to each peer and
// signals. With copy engines the copies are plain steps; by SMs the whole is one kernel.
#include <utility>

#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/low_latency.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// The piece of the input that goes to `peer`, and where `source`'s piece belongs in the output.
View Sent(const Problem& problem, const View& in, int peer) {
  if (problem.request->op == Op::kAllGather) return in;
  const int64_t length = in.extent[problem.dim] / problem.world_size;
  return Slice(in, problem.dim, peer * length, length);
}
View PlaceOf(const Problem& problem, const View& out, int source) {
  const int64_t length = out.extent[problem.dim] / problem.world_size;
  return Slice(out, problem.dim, source * length, length);
}

}  // namespace

Exchange::Exchange(std::span<const View> pieces, bool direct, Builder* builder)
    : builder_(builder), direct_(direct) {
  for (const View& piece : pieces) slots_.emplace_back(builder, direct ? 0 : Bytes(piece));
}

void Exchange::Write(std::span<const ExchangeViews> tensors, const Manner& manner) {
  const int world = builder_->world_size();
  const int sent = builder_->Signals();
  if (manner.enters || builder_->InBulk()) builder_->Enter();
  for (int r = 0; r < world; ++r) {
    const auto rank = static_cast<size_t>(r);
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      for (size_t t = 0; t < tensors.size(); ++t) {
        const View& part = tensors[t].sent[rank][static_cast<size_t>(peer)];
        const View target = direct_ ? tensors[t].placed[static_cast<size_t>(peer)][rank]
                                    : PackedLike(part, slots_[t].At(peer, r));
        builder_->Copy(r, 0, part, target, manner.copy_engine, Text("push to ", peer));
      }
      builder_->Signal(r, 0, peer, sent);
    }
    for (const ExchangeViews& tensor : tensors) {
      if (!tensor.sums.empty()) continue;
      builder_->Copy(r, manner.own_lane, tensor.sent[rank][rank], tensor.placed[rank][rank],
                     manner.copy_engine, "own piece");
    }
    // Sums are taken in rank order; what is only moved is in the order in which it comes.
    const bool sums = !tensors[0].sums.empty();
    for (int j = sums ? 0 : 1; j < world; ++j) {
      const int source = sums ? j : (r + j) % world;
      if (source != r) builder_->Wait(r, 0, source, sent);
      for (size_t t = 0; t < tensors.size() && !sums && !direct_; ++t) {
        const View& place = tensors[t].placed[rank][static_cast<size_t>(source)];
        builder_->Copy(r, 0, PackedLike(place, slots_[t].At(r, source)), place, manner.copy_engine,
                       "copy out");
      }
    }
    for (size_t t = 0; t < tensors.size() && sums; ++t) {
      ReduceStep sum = tensors[t].sums[rank];
      const View& own = tensors[t].sent[rank][rank];
      for (int source = 0; source < world; ++source) {
        sum.sources.push_back(source == r ? own : PackedLike(own, slots_[t].At(r, source)));
      }
      builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    }
  }
}

Status BuildExchange(const Problem& problem, Algorithm algorithm, OperationPlan* plan) {
  const int world = problem.world_size;
  const Op op = problem.request->op;
  const bool sums = op == Op::kReduceScatter;
  const bool copy_engine = algorithm == Algorithm::kCopyEngine;
  const bool aliased = problem.operand(problem.slots.output).alias_of >= 0;
  // In place, pieces that peers wrote early into all_to_all's output would overwrite an input that is still
  // to be sent. Into all_gather's they go beside the input, which is the own part.
  const bool overwrites = aliased && op == Op::kAllToAll;
  const bool direct = !sums && !overwrites && problem.symmetric(problem.slots.output);
  Builder builder(world, 1);
  const View piece = Sent(problem, problem.Slot(0, problem.slots.input), 0);
  Exchange exchange({&piece, 1}, direct, &builder);
  ExchangeViews views;
  for (int r = 0; r < world; ++r) {
    const View in = problem.Slot(r, problem.slots.input), out = problem.Slot(r, problem.slots.output);
    if (!copy_engine) {
      builder.BeginCollective(r, 0, algorithm, op, in, out, problem.request->reduce_op, 1,
                              SendsDensePackets(problem));
    }
    views.sent.emplace_back();
    views.placed.emplace_back();
    for (int peer = 0; peer < world; ++peer) {
      views.sent.back().push_back(Sent(problem, in, peer));
      if (!sums) views.placed.back().push_back(PlaceOf(problem, out, peer));
    }
    if (!sums) continue;
    ReduceStep sum;
    sum.dst = out;
    sum.scale = problem.mean;
    sum.reduce_op = problem.combine;
    views.sums.push_back(std::move(sum));
  }
  exchange.Write({&views, 1}, {.copy_engine = copy_engine, .enters = direct});
  for (int r = 0; r < world && !copy_engine; ++r) builder.EndCollective(r);
  if (sums) {
    plan->wire_type = DTypeName(piece.dtype);  // the inputs themselves travel
    SetSum(piece.dtype, "rank order", 1, plan);
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
