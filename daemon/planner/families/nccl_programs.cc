// Collectives without a matmul by NCCL (its stand-in on the host backend). NCCL wants packed, rank-major
// buffers of one type, so strided operands, inner dimensions and another wire type go through workspace.
#include "daemon/planner/families/families.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

NcclKind KindOf(Op op) {
  switch (op) {
    case Op::kAllGather: return NcclKind::kAllGather;
    case Op::kReduceScatter: return NcclKind::kReduceScatter;
    case Op::kBroadcast: return NcclKind::kBroadcast;
    case Op::kReduce: return NcclKind::kReduce;
    case Op::kAllToAll: return NcclKind::kAllToAll;
    case Op::kBarrier: return NcclKind::kBarrier;
    default: return NcclKind::kAllReduce;
  }
}

// Whether an operand must go through workspace: another type on the wire, or not packed.
bool NeedsStage(const View& view, DType wire) { return view.dtype != wire || !IsContiguous(view); }

// `view` in workspace in the wire type, or itself.
View Staged(const View& view, DType wire, bool stage, uint64_t offset, Builder* builder) {
  return stage ? Packed(builder->Workspace(view.ref.rank, offset), wire, view.extent) : view;
}

// Copies or converts.
void Move(int rank, const View& src, const View& dst, Builder* builder, std::string label) {
  if (src.dtype == dst.dtype) {
    builder->Copy(rank, 0, src, dst, false, std::move(label));
    return;
  }
  ReduceStep convert;
  convert.sources = {src};
  convert.dst = dst;
  builder->Reduce(rank, 0, std::move(convert), std::move(label));
}

}  // namespace

View RankMajor(const View& view, int dim, int world_size) {
  return MoveDim(SplitDim(view, dim, world_size), dim, 0);
}

Status BuildNccl(const Problem& problem, OperationPlan* plan) {
  const Op op = problem.request->op;
  const int world = problem.world_size;
  Builder builder(world, 1);
  NcclStep nccl;
  nccl.kind = KindOf(op);
  nccl.reduce_op = problem.request->reduce_op;
  nccl.root = problem.request->root;
  if (op == Op::kBarrier) {
    for (int r = 0; r < world; ++r) builder.Add(r, 0, nccl, "barrier");
    return builder.Finish(plan);
  }
  const bool sums = op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce;
  const DType own_type = problem.Slot(0, problem.slots.input).dtype;
  const DType wire = sums ? problem.wire : own_type;
  const auto input = [&](int r) {
    const View view = problem.Slot(r, problem.slots.input);
    return op == Op::kReduceScatter || op == Op::kAllToAll ? RankMajor(view, problem.dim, world) : view;
  };
  const auto output = [&](int r) {
    const View view = problem.Slot(r, problem.slots.output);
    return op == Op::kAllGather || op == Op::kAllToAll ? RankMajor(view, problem.dim, world) : view;
  };
  const auto wire_bytes = [wire](const View& view) {
    return static_cast<uint64_t>(Elements(view)) * DTypeBytes(wire);
  };
  const bool stages_in = NeedsStage(input(0), wire);
  // NCCL's all-to-all does not work in place.
  const bool in_place = problem.operand(problem.slots.output).alias_of >= 0;
  const bool stages_out = NeedsStage(output(0), wire) || (in_place && op == Op::kAllToAll && !stages_in);
  const uint64_t in_stage = builder.Reserve(stages_in ? wire_bytes(input(0)) : 0);
  const uint64_t out_stage = builder.Reserve(stages_out ? wire_bytes(output(0)) : 0);
  for (int r = 0; r < world; ++r) {
    const View in = input(r), out = output(r);
    nccl.in = Staged(in, wire, stages_in, in_stage, &builder);
    nccl.out = Staged(out, wire, stages_out, out_stage, &builder);
    // Ranks other than the root do not send in a broadcast and get nothing in a reduce; NCCL leaves those
    // alone.
    if (op != Op::kBroadcast || r == nccl.root) {
      if (!(nccl.in == in)) Move(r, in, nccl.in, &builder, "pack");
    }
    builder.Add(r, 0, nccl, "nccl");
    if (op != Op::kReduce || r == nccl.root) {
      if (!(nccl.out == out)) Move(r, nccl.out, out, &builder, "unpack");
    }
  }
  if (sums) {
    plan->wire_type = DTypeName(wire);
    plan->reduction_order = "NCCL's";
    // A ring rounds at each hop to the wire type.
    plan->roundings = !IsFloating(wire) ? 0 : wire == DType::kF32 ? 1 : world - 1;
    plan->deterministic = !IsFloating(wire);  // integers wrap alike in every order
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
