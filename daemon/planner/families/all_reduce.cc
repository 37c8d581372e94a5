// All-reduce over symmetric memory. One-shot and two-shot as in PyTorch's symmetric memory and vLLM's custom
// all-reduce, turned from pull to push; hybrid cube mesh as in PyTorch's intra-node communicator for DGX-1.
#include <algorithm>
#include <array>

#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/low_latency.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// The parts of a tensor by owner: ranges of elements when input and output are contiguous, else of the
// longest dimension.
class Parts {
 public:
  Parts(const View& in, const View& out, int world) : world_(world) {
    flat_ = IsContiguous(in) && IsContiguous(out);
    if (flat_) {
      total_ = Elements(in);
      // Kernels move 16 B at a time: an owner's range starts at a multiple.
      granule_ = static_cast<int64_t>(16 / DTypeBytes(in.dtype));
      return;
    }
    dim_ = static_cast<int>(std::max_element(in.extent.begin(), in.extent.end()) - in.extent.begin());
    total_ = in.extent[dim_];
  }
  View Of(const View& view, int owner) const {
    const Range range = AlignedPart(total_, world_, owner, granule_);
    return Slice(flat_ ? Flatten(view) : view, dim_, range.begin, range.length);
  }

 private:
  int world_;
  bool flat_ = true;
  int dim_ = 0;
  int64_t total_ = 0;
  int64_t granule_ = 1;
};

Status HybridCubeMeshShots(const Problem& problem, Builder* builder) {
  TANDEM_ASSIGN_OR_RETURN(const HybridCubeMesh mesh, FindHybridCubeMesh(problem.group->topology));
  const View shape = problem.Slot(0, problem.slots.input);
  View wire_shape = shape;
  wire_shape.dtype = problem.wire;
  // quad[i][k] = j means quad[j][k] = i: matching k has one slot on both.
  std::array<uint64_t, 3> from_quad{};
  for (uint64_t& offset : from_quad) offset = builder->Reserve(Bytes(shape));
  const uint64_t quad_sum = builder->Reserve(Bytes(wire_shape));
  const uint64_t from_mate = builder->Reserve(Bytes(wire_shape));
  const int sent = builder->Signals(), summed = builder->Signals();
  if (builder->InBulk()) {
    builder->Enter([&mesh](int a, int b) {
      return mesh.mate[a] == b ||
             std::find(mesh.quad[a].begin(), mesh.quad[a].end(), b) != mesh.quad[a].end();
    });
  }
  for (int r = 0; r < problem.world_size; ++r) {
    const View in = problem.Slot(r, problem.slots.input), out = problem.Slot(r, problem.slots.output);
    for (int k = 0; k < 3; ++k) {
      const int peer = mesh.quad[r][k];
      builder->Copy(r, 0, in, PackedLike(in, builder->Workspace(peer, from_quad[k])), false,
                    Text("push to ", peer, " of the quad"));
      builder->Signal(r, 0, peer, sent);
    }
    std::array<std::pair<int, View>, 4> members;
    members[3] = {r, in};
    for (int k = 0; k < 3; ++k) {
      builder->Wait(r, 0, mesh.quad[r][k], sent);
      members[k] = {mesh.quad[r][k], PackedLike(in, builder->Workspace(r, from_quad[k]))};
    }
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    ReduceStep quad;
    quad.dst = PackedLike(wire_shape, builder->Workspace(r, quad_sum));
    quad.reduce_op = problem.combine;
    for (const auto& [rank, view] : members) quad.sources.push_back(view);
    const View own_sum = quad.dst;
    builder->Reduce(r, 0, std::move(quad), "sum of the quad");
    const int mate = mesh.mate[r];
    builder->Copy(r, 0, own_sum, PackedLike(wire_shape, builder->Workspace(mate, from_mate)), false,
                  Text("sum to mate ", mate));
    builder->Signal(r, 0, mate, summed);
    builder->Wait(r, 0, mate, summed);
    ReduceStep both;
    both.dst = out;
    both.scale = problem.mean;
    both.reduce_op = problem.combine;
    both.sources = {own_sum, PackedLike(wire_shape, builder->Workspace(r, from_mate))};
    // The quad of rank 0 first on every rank, so that all ranks get the same bits.
    const int other_quad_first = std::min({mate, mesh.quad[mate][0], mesh.quad[mate][1], mesh.quad[mate][2]});
    if (other_quad_first < members[0].first) std::swap(both.sources[0], both.sources[1]);
    builder->Reduce(r, 0, std::move(both), "sum of both quads");
  }
  return Status::Ok();
}

}  // namespace

AllReduceSteps::AllReduceSteps(const View& in, const View& out, int shots, bool in_place, Builder* builder)
    : builder_(builder), shots_(shots) {
  const uint64_t bytes = shots == 1 ? Bytes(in) : Bytes(Parts(in, out, builder->world_size()).Of(in, 0));
  inbox_.emplace_back(builder, bytes);
  if (shots == 2) inbox_.emplace_back(builder, in_place ? 0 : bytes);
}

void AllReduceSteps::Write(const AllReduceViews& views) {
  shots_ == 1 ? WriteOneShot(views) : WriteTwoShot(views);
}

void AllReduceSteps::WriteOneShot(const AllReduceViews& views) {
  const int world = builder_->world_size();
  const PeerSlots& slots = inbox_[0];
  const int sent = builder_->Signals();
  if (builder_->InBulk()) builder_->Enter();
  for (int r = 0; r < world; ++r) {
    const View &in = views.in[static_cast<size_t>(r)], &out = views.out[static_cast<size_t>(r)];
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder_->Copy(r, 0, in, PackedLike(in, slots.At(peer, r)), views.copy_engine, Text("push to ", peer));
      builder_->Signal(r, 0, peer, sent);
    }
    ReduceStep sum;
    sum.dst = out;
    sum.scale = views.mean;
    sum.reduce_op = views.combine;
    for (int source = 0; source < world; ++source) {
      if (source != r) builder_->Wait(r, 0, source, sent);
      sum.sources.push_back(source == r ? in : PackedLike(in, slots.At(r, source)));
    }
    builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
  }
}

void AllReduceSteps::WriteTwoShot(const AllReduceViews& views) {
  const int world = builder_->world_size();
  const Parts parts(views.in[0], views.out[0], world);
  const bool in_place = views.in_place;  // peers write the output directly
  const PeerSlots &partials = inbox_[0], &results = inbox_[1];
  const int sent = builder_->Signals(), summed = builder_->Signals();
  if (builder_->InBulk()) builder_->Enter();
  for (int r = 0; r < world; ++r) {
    const View &in = views.in[static_cast<size_t>(r)], &out = views.out[static_cast<size_t>(r)];
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      const View part = parts.Of(in, peer);
      builder_->Copy(r, 0, part, PackedLike(part, partials.At(peer, r)), views.copy_engine,
                     Text("part to owner ", peer));
      builder_->Signal(r, 0, peer, sent);
    }
    const View own = parts.Of(out, r);
    ReduceStep sum;
    sum.dst = own;
    sum.scale = views.mean;
    sum.reduce_op = views.combine;
    for (int source = 0; source < world; ++source) {
      if (source != r) builder_->Wait(r, 0, source, sent);
      const View part = parts.Of(in, r);
      sum.sources.push_back(source == r ? part : PackedLike(part, partials.At(r, source)));
    }
    builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    // A peer's part has arrived, so its launch has begun, and it has read the range that is written here
    // before it signalled: its symmetric output may be written.
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder_->Copy(r, 0, own, in_place ? OnRank(own, peer) : PackedLike(own, results.At(peer, r)),
                     views.copy_engine, Text("result to ", peer));
      builder_->Signal(r, 0, peer, summed);
    }
    for (int j = 1; j < world; ++j) {
      const int peer = (r + j) % world;
      builder_->Wait(r, 0, peer, summed);
      const View part = parts.Of(out, peer);
      if (!in_place)
        builder_->Copy(r, 0, PackedLike(part, results.At(r, peer)), part, views.copy_engine, "copy out");
    }
  }
}

void SetSum(DType dtype, std::string_view order, int roundings, OperationPlan* plan) {
  const std::string_view accumulators = IsFloating(dtype) ? "fp32" : DTypeName(dtype);
  plan->reduction_order = Text(order, ", ", accumulators);
  plan->roundings = IsFloating(dtype) ? roundings : 0;
}

Status BuildAllReduce(const Problem& problem, Algorithm algorithm, OperationPlan* plan) {
  Builder builder(problem.world_size, 1);
  AllReduceViews views;
  views.mean = problem.mean;
  views.combine = problem.combine;
  views.in_place = problem.symmetric(problem.slots.output);
  for (int r = 0; r < problem.world_size; ++r) {
    views.in.push_back(problem.Slot(r, problem.slots.input));
    views.out.push_back(problem.Slot(r, problem.slots.output));
  }
  const int shots = algorithm == Algorithm::kLowLatency ? LowLatencyShots(problem) : 1;
  const bool two_shots =
      algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kCopyEngine || shots == 2;
  views.copy_engine = algorithm == Algorithm::kCopyEngine;
  for (int r = 0; r < problem.world_size && !views.copy_engine; ++r) {
    builder.BeginCollective(r, 0, algorithm, Op::kAllReduce, problem.Slot(r, problem.slots.input),
                            problem.Slot(r, problem.slots.output), problem.request->reduce_op, shots,
                            SendsDensePackets(problem));
  }
  const DType dtype = problem.Slot(0, problem.slots.input).dtype;
  SetSum(dtype, "rank order", 1, plan);
  // The ranks exchange the inputs themselves, and final sums: fp32 on the wire would change nothing.
  plan->wire_type = DTypeName(dtype);
  if (algorithm != Algorithm::kHybridCubeMesh) {
    AllReduceSteps(views.in[0], views.out[0], two_shots ? 2 : 1, views.in_place, &builder).Write(views);
  } else {
    TANDEM_RETURN_IF_ERROR(HybridCubeMeshShots(problem, &builder));
    SetSum(dtype, "rank order within each quad, then the two quads", problem.wire == DType::kF32 ? 1 : 2,
           plan);
    plan->wire_type = DTypeName(problem.wire);
  }
  for (int r = 0; r < problem.world_size && !views.copy_engine; ++r) builder.EndCollective(r);
  return builder.Finish(plan);
}

}  // namespace tandem::plan
