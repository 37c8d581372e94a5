// Matmul, then reduce-scatter of the product: unfused, as a chunk pipeline over two lanes, as a ring of
// transfer groups, and by one kernel that signals complete slices and sums its own.
//
// Rank r multiplies the slice of rank r + 1 first and its own last, so that at any time all ranks send to
// different owners and the own slice needs no travel. An owner sums in rank order with fp32 accumulators;
// bias and result scale come once, after the sum.
#include "daemon/planner/families/families.h"
#include "daemon/planner/families/fused_entry.h"
#include "daemon/planner/families/skinny.h"
#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/forms/row_products.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

class Scatter {
 public:
  Scatter(const Problem& problem, int pieces, Builder* builder)
      : problem_(problem),
        builder_(builder),
        pieces_(pieces),
        world_(problem.world_size),
        dim_(problem.dim),
        slice_(WireShape(problem)),
        inbox_(builder, Bytes(slice_)) {
    // The last slice is the rank's own: it lies in the output if that has the wire type.
    own_in_output_ = problem.wire == problem.Slot(0, problem.slots.c[0]).dtype;
    own_ = builder->Reserve(own_in_output_ ? 0 : Bytes(slice_));
    own_steps_.assign(static_cast<size_t>(world_), Builder::kNone);
    const Range largest = Piece(0);
    for (int lane = 0; lane < builder->lanes() && world_ > 1; ++lane) {
      stage_.push_back(builder->Reserve(Bytes(Slice(slice_, dim_, 0, largest.length))));
    }
  }

  // Multiplies piece `i` of the slice of `owner` on `lane`; returns where it lies.
  View Multiply(int rank, int lane, int owner, int i) {
    const Range part = Piece(i);
    View target;
    if (owner == rank) {
      target = Slice(Own(rank), dim_, part.begin, part.length);
    } else {
      std::vector<int64_t> shape = slice_.extent;
      shape[dim_] = part.length;
      target = Packed(builder_->Workspace(rank, stage_[lane]), problem_.wire, std::move(shape));
    }
    const Range range{owner * slice_.extent[dim_] + part.begin, part.length};
    if (Elements(target) > 0) {
      const uint32_t step = builder_->Multiply(rank, lane, PartialMatmul(problem_, rank, dim_, range, target),
                                               Text("gemm slice ", owner));
      if (owner == rank) own_steps_[rank] = step;
    }
    return target;
  }

  // The place of piece `i` from `source` in its owner's memory.
  View Landing(int owner, int source, int i) const {
    const Range part = Piece(i);
    return Slice(PackedLike(slice_, inbox_.At(owner, source)), dim_, part.begin, part.length);
  }

  // The step of the last product for the own slice, or kNone.
  uint32_t OwnStep(int rank) const { return own_steps_[rank]; }

  // The sum over ranks on lane 0, after `deps` as well.
  void Sum(int rank, std::vector<uint32_t> deps) {
    ReduceStep sum;
    sum.dst = problem_.Slot(rank, problem_.slots.c[0]);
    sum.scale = problem_.mean;
    for (int source = 0; source < world_; ++source) {
      sum.sources.push_back(source == rank ? Own(rank) : PackedLike(slice_, inbox_.At(rank, source)));
    }
    AddEpilogue(problem_, rank, dim_, &sum);
    // Alone, without anything to add: the matmul has written the output.
    if (world_ == 1 && own_in_output_ && !HasEpilogue(problem_)) return;
    builder_->Reduce(rank, 0, std::move(sum), "sum in rank order", std::move(deps));
  }

 private:
  static View WireShape(const Problem& problem) {
    return Packed(Ref{}, problem.wire, problem.Slot(0, problem.slots.c[0]).extent);
  }
  Range Piece(int i) const { return BalancedPart(slice_.extent[dim_], pieces_, i); }
  View Own(int rank) const {
    return own_in_output_ ? problem_.Slot(rank, problem_.slots.c[0])
                          : PackedLike(slice_, builder_->Workspace(rank, own_));
  }

  const Problem& problem_;
  Builder* builder_;
  int pieces_;
  int world_;
  int dim_;
  View slice_;       // shape of one rank's slice, wire type, packed
  PeerSlots inbox_;  // whole slices of the peers
  bool own_in_output_ = false;
  uint64_t own_ = 0;
  std::vector<uint64_t> stage_;      // by lane: a piece on its way to its owner
  std::vector<uint32_t> own_steps_;  // by rank
};

// Each lane in turn multiplies a slice and pushes it to its owner; copies of one lane overlap the other's
// matmul. The last slice, the own one, is lane 0's: the sum follows it there, and so does the program's end.
// From one lane to another it would be microseconds.
void Pipeline(const Problem& problem, Scatter* scatter, Builder* builder) {
  const int world = problem.world_size;
  const int sent = builder->Signals();
  if (builder->InBulk()) builder->Enter();
  for (int r = 0; r < world; ++r) {
    for (int j = 0; j < world; ++j) {
      const int owner = (r + j + 1) % world, lane = (world - 1 - j) % builder->lanes();
      const View product = scatter->Multiply(r, lane, owner, 0);
      if (owner == r) continue;
      builder->Copy(r, lane, product, scatter->Landing(owner, r, 0), true, Text("slice to ", owner));
      builder->Signal(r, lane, owner, sent);
    }
    for (int j = 1; j < world; ++j) {
      const int source = (r - j + world) % world;  // the order of arrival
      builder->Wait(r, 0, source, sent, Text("slice from ", source));
    }
    scatter->Sum(r, {scatter->OwnStep(r)});
  }
}

// On lane 0 one kernel multiplies the slices in the pipeline's order, and its tiles deliver the peers' slices
// to their owners. It sums its own slice, the last, with its peers' as it multiplies it. Step by step,
// a slice lies in this rank's memory first and is copied. Pushes by copy engine of whole slices, with a word
// behind each, were as fast on two H200s and slower for fp8 and for short products
// (bench/figures/kernels.md). With more than one wave of the kernel's tiles, lane 1 meets the peers at the
// same time.
int FusedLanes(const Problem& problem) {
  if (problem.in_client()) return 1;
  const View c = FoldedRows(problem.Slot(0, problem.slots.c[0]));
  return IsOneFusedWave(problem.world_size, c.extent[0], c.extent[1]) ? 1 : 2;
}

// Bands of columns, each with its own signal, so that an owner's tiles wait for their own band alone. The
// peer's rows of a band are computed before the own rows of the band before. On two H200s this saves up to a
// sixth of the time. On four it costs up to 9 %, and with short rows of A up to 20 %: a band's sums come
// later than its tiles want them.
int FusedBands(const Problem& problem) {
  constexpr int64_t kLeastRowBytes = 4096;
  const View c = FoldedRows(problem.Slot(0, problem.slots.c[0]));
  const auto element = static_cast<int64_t>(DTypeBytes(problem.operand(problem.slots.a).spec.dtype));
  if (problem.world_size > 2 || problem.k * element < kLeastRowBytes) return 1;
  return CutFusedTiles(problem.world_size * c.extent[0], c.extent[1], problem.world_size).bands;
}

void Fused(const Problem& problem, Builder* builder) {
  const int world = problem.world_size, dim = problem.dim, bands = FusedBands(problem);
  const View c = problem.Slot(0, problem.slots.c[0]);
  const View slice = Packed(Ref{}, problem.wire, c.extent);
  const PeerSlots inbox(builder, Bytes(slice)), stage(builder, Bytes(slice));
  const int sent = builder->Signals(bands);
  FusedEntry entry(builder, problem.in_client());
  entry.Handshake();
  for (int r = 0; r < world; ++r) {
    builder->BeginCollective(r, 0, Algorithm::kFused, Op::kMatmulReduceScatter,
                             problem.Slot(r, problem.slots.a), problem.Slot(r, problem.slots.c[0]),
                             ReduceOp::kSum);
    entry.Begin(r);
    for (int j = 1; j <= world; ++j) {
      const int owner = (r + j) % world;
      const Range rows{owner * c.extent[dim], c.extent[dim]};
      const View target =
          owner == r ? problem.Slot(r, problem.slots.c[0]) : PackedLike(slice, stage.At(r, owner));
      builder->Add(r, 0, PartialMatmul(problem, r, dim, rows, target), Text("gemm slice ", owner));
      if (owner == r) continue;
      entry.BeforeDelivery(r);
      builder->Copy(r, 0, target, PackedLike(slice, inbox.At(owner, r)), true, Text("slice to ", owner));
      for (int band = 0; band < bands; ++band) builder->Signal(r, 0, owner, sent + band);
    }
    ReduceStep sum;
    sum.dst = problem.Slot(r, problem.slots.c[0]);
    for (int source = 0; source < world; ++source) {
      for (int band = 0; band < bands && source != r; ++band)
        builder->Wait(r, 0, source, sent + band, Text("slice from ", source));
      sum.sources.push_back(source == r ? sum.dst : PackedLike(slice, inbox.At(r, source)));
    }
    AddEpilogue(problem, r, dim, &sum);
    builder->Reduce(r, 0, std::move(sum), "sum in rank order");
    builder->EndCollective(r, FusedBlocks(problem));
  }
}

// S = W * pieces steps over n lanes; a step's send and receive progress together as one transfer group.
void Ring(const Problem& problem, int pieces, Scatter* scatter, Builder* builder) {
  const int world = problem.world_size;
  const int sent = builder->Signals(pieces);
  if (builder->InBulk()) builder->Enter();
  for (int r = 0; r < world; ++r) {
    for (int i = 0; i < pieces; ++i) {
      for (int j = 0; j < world; ++j) {
        const int owner = (r + j + 1) % world, lane = (i + j) % builder->lanes();
        const View product = scatter->Multiply(r, lane, owner, i);
        if (owner == r) continue;
        const int source = (r - j - 1 + world) % world;
        TransferPart send, receive;
        send.peer = static_cast<uint8_t>(owner);
        send.index = receive.index = static_cast<uint16_t>(sent + i);
        send.src = product;
        send.dst = scatter->Landing(owner, r, i);
        receive.send = false;
        receive.peer = static_cast<uint8_t>(source);
        TransferGroupStep group;
        group.parts = {std::move(send), std::move(receive)};
        builder->Add(r, lane, std::move(group), Text("piece ", i, " to ", owner, ", from ", source));
      }
    }
    scatter->Sum(r, builder->LastOfOthers(r, 0));  // they wait for the peers' pieces
  }
}

// The whole product into `whole`, whose first dimension is the owner's rank.
void MultiplyWhole(const Problem& problem, int r, const View& whole, Builder* builder) {
  const int world = problem.world_size, dim = problem.dim;
  const int64_t length = problem.Slot(0, problem.slots.c[0]).extent[dim];
  if (Elements(whole) == 0) return;
  if (problem.last_dim()) {
    for (int owner = 0; owner < world; ++owner) {  // columns of one slice lie packed: one matmul each
      const View part = DropDim(Slice(whole, 0, owner, 1), 0);
      builder->Multiply(r, 0, PartialMatmul(problem, r, dim, {owner * length, length}, part),
                        Text("gemm slice ", owner));
    }
    return;
  }
  MatmulStep step = PartialMatmul(problem, r, dim, {0, length * world}, MoveDim(whole, 0, dim));
  step.a = SplitDim(step.a, dim, world);
  if (step.has_scale_a && problem.scale_mode != ScaleMode::kTensorWise)
    step.scale_a = SplitDim(step.scale_a, dim, world);
  if (IsOfMatrices(step)) {
    builder->Add(r, 0, std::move(step), "gemm");
    return;
  }
  for (int owner = 0; owner < world;
       ++owner) {  // behind an outer dimension: by slices, which are of fewer matrices
    const View part = DropDim(Slice(whole, 0, owner, 1), 0);
    builder->Multiply(r, 0, PartialMatmul(problem, r, dim, {owner * length, length}, part),
                      Text("gemm slice ", owner));
  }
}

// The product, then `collective`. Returns whether sums are rounded before bias and result scale.
bool UnfusedScatter(const Problem& problem, Algorithm collective, Builder* builder) {
  const int world = problem.world_size;
  const bool by_nccl = collective == Algorithm::kNccl, copy_engine = collective == Algorithm::kCopyEngine;
  const View c = problem.Slot(0, problem.slots.c[0]);
  std::vector<int64_t> shape = c.extent;
  shape.insert(shape.begin(), world);
  const View slice = Packed(Ref{}, problem.wire, c.extent);
  // A sum in a separate step writes any output; NCCL and kernels know no bias and one type.
  const bool into_output =
      copy_engine || (c.dtype == problem.wire && IsContiguous(c) && !HasEpilogue(problem));
  const uint64_t product = builder->ReserveSteady(Bytes(slice) * static_cast<uint64_t>(world));
  const uint64_t scattered = builder->ReserveSteady(into_output ? 0 : Bytes(slice));
  Exchange exchange({&slice, 1}, by_nccl, builder);  // NCCL has its own inbox
  ExchangeViews views;
  std::vector<View> sums;
  for (int r = 0; r < world; ++r) {
    const View whole = Packed(builder->Steady(r, product), problem.wire, shape);
    MultiplyWhole(problem, r, whole, builder);
    const View out = problem.Slot(r, problem.slots.c[0]);
    sums.push_back(into_output ? out : PackedLike(slice, builder->Steady(r, scattered)));
    if (by_nccl) {
      NcclStep step;
      step.kind = NcclKind::kReduceScatter;
      step.reduce_op = problem.request->reduce_op;
      step.in = whole;
      step.out = sums.back();
      builder->Add(r, 0, std::move(step), "reduce-scatter");
      continue;
    }
    views.sent.emplace_back();
    for (int owner = 0; owner < world; ++owner)
      views.sent.back().push_back(DropDim(Slice(whole, 0, owner, 1), 0));
    ReduceStep sum;
    sum.dst = sums.back();
    sum.scale = problem.mean;
    if (copy_engine) AddEpilogue(problem, r, problem.dim, &sum);
    views.sums.push_back(std::move(sum));
    if (!copy_engine) {
      builder->BeginCollective(r, 0, collective, Op::kReduceScatter, whole, sums.back(),
                               problem.request->reduce_op, 1, SendsDensePackets(problem));
    }
  }
  if (!by_nccl) exchange.Write({&views, 1}, {.copy_engine = copy_engine});
  for (int r = 0; r < world && !into_output; ++r) {
    if (!by_nccl) builder->EndCollective(r);
    ReduceStep finish;
    finish.sources = {sums[static_cast<size_t>(r)]};
    finish.dst = problem.Slot(r, problem.slots.c[0]);
    AddEpilogue(problem, r, problem.dim, &finish);
    builder->Reduce(r, 0, std::move(finish), "bias and scale");
  }
  for (int r = 0; r < world && into_output && !by_nccl && !copy_engine; ++r) builder->EndCollective(r);
  return !into_output;
}

// A partial sum is rounded to the wire type, the sum once more; fp32 on the wire leaves the one at the end.
void SetSumNumbers(const Problem& problem, OperationPlan* plan) {
  plan->wire_type = DTypeName(problem.wire);
  plan->reduction_order = "rank order, fp32";
  plan->roundings = problem.wire == DType::kF32 ? 1 : 2;
}

}  // namespace

Status BuildMatmulReduceScatter(const Problem& problem, Algorithm algorithm, Algorithm collective,
                                OperationPlan* plan) {
  const OpRequest& request = *problem.request;
  const int world = problem.world_size;
  const bool ring = algorithm == Algorithm::kRing && world > 1;
  const bool unfused = !Overlaps(algorithm) && world > 1;
  const int pieces = ring && request.steps > 0 ? request.steps / world : 1;
  const bool fused = algorithm == Algorithm::kFused;
  if (const auto skinny = fused ? SkinnyFor(problem) : std::nullopt) {
    SetSumNumbers(problem, plan);
    return BuildSkinny(problem, *skinny, plan);
  }
  const int asked = request.lanes > 0 ? request.lanes : 2;
  const int lanes = world == 1 || unfused ? 1 : fused ? FusedLanes(problem) : asked;
  // A chunk's product, its copy and its words.
  Builder builder(world, lanes, 3 * world * pieces + 32, problem.in_client());
  if (unfused) {
    const bool again = UnfusedScatter(problem, collective, &builder);
    SetUnfusedNumbers(problem, collective, again, plan);
    return builder.Finish(plan);
  }
  SetSumNumbers(problem, plan);
  if (fused) {
    plan->steps = world;
    Fused(problem, &builder);
    return builder.Finish(plan);
  }
  plan->steps = world * pieces;
  Scatter scatter(problem, pieces, &builder);
  if (ring) {
    Ring(problem, pieces, &scatter, &builder);
  } else {
    Pipeline(problem, &scatter, &builder);
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
