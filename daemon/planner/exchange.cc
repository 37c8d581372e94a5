// All-gather, reduce-scatter and all-to-all by pushing pieces: each rank copies a piece to each peer and
// signals. With copy engines the copies are plain steps; by SMs the whole is one kernel.
#include "daemon/planner/families.h"
#include "daemon/planner/text.h"

namespace tandem::plan {
namespace {

// The piece of the input that goes to `peer`, and where `source`'s piece belongs in the output.
View Sent(const Problem& problem, const View& in, int peer) {
  if (problem.request->op == Op::kAllGather) return in;
  const int64_t length = in.extent[problem.dim] / problem.world_size;
  return Slice(in, problem.dim, peer * length, length);
}
View Placed(const Problem& problem, const View& out, int source) {
  const int64_t length = out.extent[problem.dim] / problem.world_size;
  return Slice(out, problem.dim, source * length, length);
}

}  // namespace

Status BuildExchange(const Problem& problem, Algorithm algorithm, Plan* plan) {
  const int world = problem.world_size;
  const Op op = problem.request->op;
  const bool sums = op == Op::kReduceScatter;
  const bool copy_engine = algorithm == Algorithm::kCopyEngine;
  const bool aliased = problem.operand(problem.slots.output).alias_of >= 0;
  // In place, an output that peers wrote early would overwrite an input that is still to be sent.
  const bool direct = !sums && !aliased && problem.symmetric(problem.slots.output);
  Builder builder(world, 1);
  const View piece = Sent(problem, problem.Slot(0, problem.slots.input), 0);
  const PeerSlots slots(&builder, direct ? 0 : Bytes(piece));
  const int sent = builder.Signals();
  for (int r = 0; r < world && !copy_engine; ++r) {
    builder.BeginCollective(r, 0, algorithm, op, problem.Slot(r, problem.slots.input),
                            problem.Slot(r, problem.slots.output), problem.request->reduce_op);
  }
  if (direct || builder.InBulk()) builder.Enter();
  for (int r = 0; r < world; ++r) {
    const View in = problem.Slot(r, problem.slots.input), out = problem.Slot(r, problem.slots.output);
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      const View part = Sent(problem, in, peer);
      const View target =
          direct ? OnRank(Placed(problem, out, r), peer) : PackedLike(part, slots.At(peer, r));
      builder.Copy(r, 0, part, target, copy_engine, Text("push to ", peer));
      builder.Signal(r, 0, peer, sent);
    }
    const View own = Sent(problem, in, r);
    if (sums) {
      ReduceStep sum;
      sum.dst = out;
      sum.scale = problem.mean;
      for (int source = 0; source < world; ++source) {
        if (source != r) builder.Wait(r, 0, source, sent);
        sum.sources.push_back(source == r ? own : PackedLike(own, slots.At(r, source)));
      }
      builder.Reduce(r, 0, std::move(sum), "sum in rank order");
    } else {
      builder.Copy(r, 0, own, Placed(problem, out, r), copy_engine, "own piece");
      for (int j = 1; j < world; ++j) {
        const int source = (r + j) % world;
        builder.Wait(r, 0, source, sent);
        const View place = Placed(problem, out, source);
        if (!direct)
          builder.Copy(r, 0, PackedLike(place, slots.At(r, source)), place, copy_engine, "copy out");
      }
    }
  }
  for (int r = 0; r < world && !copy_engine; ++r) builder.EndCollective(r);
  if (sums) {
    plan->wire_type = DTypeName(piece.dtype);  // the inputs themselves travel
    plan->reduction_order = "rank order, fp32";
    plan->roundings = 1;
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
