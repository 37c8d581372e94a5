// Broadcast and reduce: the root pushes to all, or all push to the root. Data flows one way only, so a signal
// exchange closes the programs: announced at the start, awaited at the end.
#include "daemon/planner/families/families.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

void Broadcast(const Problem& problem, bool direct, uint64_t slot, int sent, int r, Builder* builder) {
  const int world = problem.world_size, root = problem.request->root;
  const View in = problem.Slot(r, problem.slots.input), out = problem.Slot(r, problem.slots.output);
  if (r == root) {
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder->Copy(r, 0, in, direct ? OnRank(out, peer) : PackedLike(in, builder->Workspace(peer, slot)),
                    false, Text("push to ", peer));
      builder->Signal(r, 0, peer, sent);
    }
    builder->Copy(r, 0, in, out, false, "own output");
    return;
  }
  builder->Wait(r, 0, root, sent);
  if (!direct) builder->Copy(r, 0, PackedLike(out, builder->Workspace(r, slot)), out, false, "copy out");
}

void ReduceToRoot(const Problem& problem, const PeerSlots& slots, int sent, int r, Builder* builder) {
  const int world = problem.world_size, root = problem.request->root;
  const View in = problem.Slot(r, problem.slots.input);
  if (r != root) {
    builder->Copy(r, 0, in, PackedLike(in, slots.At(root, r)), false, "push to the root");
    builder->Signal(r, 0, root, sent);
    return;
  }
  ReduceStep sum;
  sum.dst = problem.Slot(r, problem.slots.output);
  sum.scale = problem.mean;
  sum.reduce_op = problem.combine;
  for (int source = 0; source < world; ++source) {
    if (source != r) builder->Wait(r, 0, source, sent);
    sum.sources.push_back(source == r ? in : PackedLike(in, slots.At(r, source)));
  }
  builder->Reduce(r, 0, std::move(sum), "sum in rank order");
}

}  // namespace

Status BuildRooted(const Problem& problem, Algorithm algorithm, OperationPlan* plan) {
  const int world = problem.world_size;
  const bool broadcast = problem.request->op == Op::kBroadcast;
  const bool direct = broadcast && problem.symmetric(problem.slots.output);
  const uint64_t bytes = Bytes(problem.Slot(0, problem.slots.input));
  Builder builder(world, 1);
  const uint64_t slot = builder.Reserve(broadcast && !direct ? bytes : 0);
  const PeerSlots slots(&builder, broadcast ? 0 : bytes);
  const int sent = builder.Signals();
  for (int r = 0; r < world; ++r) {
    builder.BeginCollective(r, 0, algorithm, problem.request->op, problem.Slot(r, problem.slots.input),
                            problem.Slot(r, problem.slots.output), problem.request->reduce_op);
  }
  const bool enters = direct || builder.InBulk();
  if (enters) builder.Enter();
  for (int r = 0; r < world; ++r) {
    if (!enters) builder.AnnounceStart(r, 0);
    if (broadcast) {
      Broadcast(problem, direct, slot, sent, r, &builder);
    } else {
      ReduceToRoot(problem, slots, sent, r, &builder);
    }
    if (!enters) builder.AwaitStarts(r, 0);
  }
  for (int r = 0; r < world; ++r) builder.EndCollective(r);
  if (!broadcast) {
    const DType dtype = problem.Slot(0, problem.slots.input).dtype;
    plan->wire_type = DTypeName(dtype);  // the inputs themselves travel
    SetSum(dtype, "rank order", 1, plan);
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
