// All-gather, then matmul(s) with the gathered A: unfused, as a chunk pipeline over two lanes, as a ring, and
// by one kernel that waits for the chunks itself.
//
// Chunks are A's shards (the ring cuts each into pieces). A rank multiplies its own first, then that of rank
// + 1, and so on, so that at any time all ranks read different shards. Gathering along K, every chunk adds to
// all of C: the sum is kept in fp32 and rounded once.
#include <algorithm>

#include "daemon/planner/families/families.h"
#include "daemon/planner/families/fused_entry.h"
#include "daemon/planner/families/skinny.h"
#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/forms/row_products.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/problem/fused_checks.h"
#include "daemon/planner/problem/scale_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Where chunks are found, and the matmuls on them.
class Gather {
 public:
  // `pieces` of each shard along the gather dimension; `inbox` reserves workspace for them.
  Gather(const Problem& problem, int pieces, bool inbox, Builder* builder)
      : problem_(problem), builder_(builder), pieces_(pieces), world_(problem.world_size), dim_(problem.dim) {
    const View a = problem.Slot(0, problem.slots.a);
    shard_ = a.extent[dim_];
    direct_ = inbox && problem.symmetric(problem.slots.gathered_a);
    scales_travel_ = problem.scales_travel();
    accumulates_ = problem.last_dim() && world_ * pieces > 1;
    for (int i = 0; inbox && i < pieces; ++i) {
      inbox_.emplace_back(builder, direct_ ? 0 : Bytes(Cut(a, i)));
      if (scales_travel_) scale_inbox_.emplace_back(builder, Bytes(CutScale(ScaleAView(problem, 0), i)));
    }
    for (size_t c = 0; c < problem.slots.c.size(); ++c) {
      const View view = problem.Slot(0, problem.slots.c[c]);
      const uint64_t bytes = accumulates_ && Rounds(c) ? static_cast<uint64_t>(Elements(view)) * 4 : 0;
      sums_.push_back(builder->ReserveSteady(bytes));
    }
    done_.assign(world_, 0);
    previous_.assign(world_, std::vector<uint32_t>(problem.slots.c.size(), Builder::kNone));
  }

  bool direct() const { return direct_; }
  bool accumulates() const { return accumulates_; }

  // Piece `i` of `source`'s shard as `rank` has it.
  View Chunk(int rank, int source, int i) const {
    const View a = problem_.Slot(rank, problem_.slots.a);
    if (source == rank) return Cut(a, i);
    if (direct_) return Gathered(rank, source, i);
    return PackedLike(Cut(a, i), inbox_[i].At(rank, source));
  }
  View ChunkScale(int rank, int source, int i) const {
    const View cut = CutScale(ScaleAView(problem_, rank), i);
    return source == rank ? cut : PackedInOrder(cut, scale_inbox_[i].At(rank, source));
  }
  // Its place in the gathered A of `rank`.
  View Gathered(int rank, int source, int i) const {
    const Range part = Piece(i);
    return Slice(problem_.Slot(rank, problem_.slots.gathered_a), dim_, source * shard_ + part.begin,
                 part.length);
  }

  // Copies the piece, and its scales, to `peer`, then signals.
  void Push(int rank, int lane, int peer, int source, int i, int index) {
    builder_->Copy(rank, lane, Chunk(rank, source, i),
                   direct_ ? Gathered(peer, source, i) : Chunk(peer, source, i), true,
                   Text("chunk ", source, " to ", peer));
    if (scales_travel_) {
      builder_->Copy(rank, lane, ChunkScale(rank, source, i), ChunkScale(peer, source, i), true,
                     "its scales");
    }
    builder_->Signal(rank, lane, peer, index);
  }

  // Copies a chunk that did not land in the gathered A there, if the caller wants A back.
  void Return(int rank, int lane, int source, int i) {
    if (problem_.slots.gathered_a < 0 || (direct_ && source != rank)) return;
    builder_->Copy(rank, lane, Chunk(rank, source, i), Gathered(rank, source, i), true, "return gathered A");
  }

  // All matmuls on piece `i` of `source`'s shard.
  void Multiply(int rank, int lane, int source, int i) {
    const Range part = Piece(i);
    View scale;
    if (scales_travel_) scale = ChunkScale(rank, source, i);
    Multiply(rank, lane, Chunk(rank, source, i), scale, {source * shard_ + part.begin, part.length},
             Text("gemm chunk ", source));
  }

  // The same on any view `a` of the elements `range` along the gather dimension, with `scale` if scales
  // travel.
  void Multiply(int rank, int lane, const View& a, const View& scale, Range range, const std::string& label) {
    const bool first = done_[rank] == 0, last = ++done_[rank] == world_ * pieces_;
    for (size_t c = 0; c < problem_.slots.c.size(); ++c) {
      MatmulStep step = ChunkMatmul(rank, c, a, scale, range);
      std::vector<uint32_t> deps;
      if (accumulates_) {
        step.c = Sum(rank, c);
        step.accumulate = !first;
        // cuBLASLt adds no bias of C's 16-bit type to a sum in fp32, and has no result scale: the rounding
        // applies them, as exactly.
        const bool ends = last && !Rounds(c);
        step.has_bias = step.has_bias && ends;
        step.has_result_scale = step.has_result_scale && ends;
        deps.push_back(previous_[rank][c]);
      }
      if (Elements(step.c) == 0) continue;
      previous_[rank][c] = builder_->Multiply(rank, lane, step, label, deps);
    }
  }

  // The matmul of `source`'s shard into C number `c`.
  MatmulStep ShardMatmul(int rank, size_t c, int source) const {
    View scale;
    if (scales_travel_) scale = ChunkScale(rank, source, 0);
    return ChunkMatmul(rank, c, Chunk(rank, source, 0), scale, {source * shard_, shard_});
  }

  // Rounds the sums over K into the outputs, with their bias and result scale.
  void Round(int rank, int lane) {
    for (size_t c = 0; accumulates_ && c < problem_.slots.c.size(); ++c) {
      if (!Rounds(c)) continue;
      ReduceStep round;
      round.sources = {Sum(rank, c)};
      round.dst = problem_.Slot(rank, problem_.slots.c[c]);
      AddEpilogue(problem_, rank, -1, &round, c);
      builder_->Reduce(rank, lane, std::move(round), "round", {previous_[rank][c]});
    }
  }

 private:
  // Along K, pieces end with a block of scales.
  bool CutsBlocks() const { return problem_.last_dim() && IsBlockWise(problem_.scale_mode); }
  Range Piece(int i) const {
    if (!CutsBlocks()) return BalancedPart(shard_, pieces_, i);
    const Range blocks = BalancedPart(ScaleBlocks(shard_), pieces_, i);
    const int64_t begin = std::min(shard_, blocks.begin * kScaleBlock);
    return {begin, std::min(shard_, begin + blocks.length * kScaleBlock) - begin};
  }
  View Cut(const View& a, int i) const {
    const Range part = Piece(i);
    return Slice(a, dim_, part.begin, part.length);
  }
  // The scales of a piece: the shard's one scale, its rows', its blocks', or along K all rows'.
  View CutScale(const View& scale, int i) const {
    if (problem_.one_scale_travels()) return scale;
    if (!problem_.last_dim()) return Cut(scale, i);
    if (!CutsBlocks()) return scale;
    const Range blocks = ScaleBlockRange(Piece(i));
    return Slice(scale, dim_, blocks.begin, blocks.length);
  }
  // C number `c` of `a`, the elements `range` along the gather dimension.
  MatmulStep ChunkMatmul(int rank, size_t c, const View& a, const View& scale, Range range) const {
    MatmulStep step = WholeMatmul(problem_, rank, c);
    step.a = a;
    if (scales_travel_) step.scale_a = scale;
    if (problem_.last_dim()) {
      SliceK(range, &step);
      if (problem_.scale_mode == ScaleMode::kBlockWiseReplicated) {
        const Range blocks = ScaleBlockRange(range);
        step.scale_a = Slice(step.scale_a, dim_, blocks.begin, blocks.length);
      }
      return step;
    }
    step.c = Slice(step.c, dim_, range.begin, range.length);
    if (AreScalesReplicated(problem_.scale_mode)) {
      step.scale_a = Slice(step.scale_a, dim_, range.begin, range.length);
    }
    return step;
  }
  // The sum over K for C number `c` lies apart from it, to be rounded.
  bool Rounds(size_t c) const { return problem_.operand(problem_.slots.c[c]).spec.dtype != DType::kF32; }
  View Sum(int rank, size_t c) const {
    const View out = problem_.Slot(rank, problem_.slots.c[c]);
    return Rounds(c) ? Packed(builder_->Steady(rank, sums_[c]), DType::kF32, out.extent) : out;
  }

  const Problem& problem_;
  Builder* builder_;
  int pieces_;
  int world_;
  int dim_;
  int64_t shard_ = 0;
  bool direct_ = false;  // peers write into the gathered A itself
  bool scales_travel_ = false;
  bool accumulates_ = false;
  std::vector<PeerSlots> inbox_, scale_inbox_;   // by piece
  std::vector<uint64_t> sums_;                   // by C: fp32 sum over K
  std::vector<int> done_;                        // by rank: chunks multiplied
  std::vector<std::vector<uint32_t>> previous_;  // by rank and C: last matmul
};

// Lane 1 pushes the shard to all peers, in the order in which they need it; lane 0 (and 2, 3, …) multiplies.
// Copies stay on one lane: copies on several do not overlap, they only slow each other down. The own product,
// which waits for nothing, goes onto its lane before the pushes: a push costs the engine's thread some 10 us,
// and nobody needs it sooner than that product takes.
void Pipeline(const Problem& problem, Gather* gather, Builder* builder) {
  const int world = problem.world_size, lanes = builder->lanes();
  const int sent = builder->Signals();
  const int push_lane = lanes > 1 ? 1 : 0;
  const int multipliers = std::max(1, lanes - 1);
  const bool product_first = push_lane != 0;
  for (int r = 0; r < world && product_first; ++r) gather->Multiply(r, 0, r, 0);
  // Only pushes touch peers: the own product does not wait for the entry.
  if (gather->direct() || builder->InBulk()) builder->EnterOn(push_lane);
  for (int r = 0; r < world; ++r) {
    for (int j = 1; j < world; ++j) gather->Push(r, push_lane, (r - j + world) % world, r, 0, sent);
    gather->Return(r, push_lane, r, 0);
    if (!product_first) gather->Multiply(r, 0, r, 0);
    for (int j = 1; j < world; ++j) {
      const int source = (r + j) % world;
      const int worker = j % multipliers;
      const int lane = worker == 0 ? 0 : worker + 1;
      builder->Wait(r, lane, source, sent, Text("chunk ", source));
      gather->Multiply(r, lane, source, 0);
      gather->Return(r, lane, source, 0);
    }
    gather->Round(r, 0);
  }
}

// On lane 0 one kernel for each B multiplies all shards, waiting for each itself; lane 1 pushes as in the
// pipeline. Where the own shard keeps all SMs busy for a while, the first kernel goes onto its lane before
// the pushes, each of which costs the engine's thread microseconds (W = 2, 2048 rows: 11 us). Elsewhere the
// kernel would wait for them (256 rows: 33 us). A kernel that goes first ends only when the peers' pushes
// have come: lanes 0 and 1 need a hardware queue each.
void Fused(const Problem& problem, Gather* gather, Builder* builder) {
  const int world = problem.world_size;
  const int sent = builder->Signals();
  if (gather->direct() || builder->InBulk()) builder->EnterOn(1);
  const View own = FoldedRows(problem.Slot(0, problem.slots.a));
  constexpr int64_t kNearlyAllSms = 96;
  const bool kernel_first = FusedTiles(1, own.extent[0], problem.n) >= kNearlyAllSms;
  const auto push = [&](int r) {
    for (int j = 1; j < world; ++j) gather->Push(r, 1, (r - j + world) % world, r, 0, sent);
    gather->Return(r, 1, r, 0);
  };
  for (int r = 0; r < world; ++r) {
    if (!kernel_first) push(r);
    for (size_t c = 0; c < problem.slots.c.size(); ++c) {
      builder->BeginCollective(r, 0, Algorithm::kFused, Op::kAllGatherMatmul,
                               problem.Slot(r, problem.slots.a), problem.Slot(r, problem.slots.c[c]),
                               ReduceOp::kSum);
      for (int j = 0; j < world; ++j) {
        const int source = (r + j) % world;
        if (source != r) builder->Wait(r, 0, source, sent, Text("chunk ", source));
        builder->Add(r, 0, gather->ShardMatmul(r, c, source), Text("gemm chunk ", source));
      }
      builder->EndCollective(r);
      if (c == 0 && kernel_first) push(r);
    }
    for (int j = 1; j < world && problem.slots.gathered_a >= 0; ++j) {
      const int source = (r + j) % world;
      if (!gather->direct()) builder->Wait(r, 1, source, sent, Text("chunk ", source));
      gather->Return(r, 1, source, 0);
    }
  }
}

// The same for clients: one launch meets the peers, pushes and multiplies. Copies behind it give A back.
void FusedInClient(const Problem& problem, Gather* gather, Builder* builder) {
  const int world = problem.world_size;
  FusedEntry entry(builder, true);
  const int sent = builder->Signals();
  for (int r = 0; r < world; ++r) {
    for (size_t c = 0; c < problem.slots.c.size(); ++c) {
      builder->BeginCollective(r, 0, Algorithm::kFused, Op::kAllGatherMatmul,
                               problem.Slot(r, problem.slots.a), problem.Slot(r, problem.slots.c[c]),
                               ReduceOp::kSum);
      if (c == 0) {
        entry.Begin(r);
        // The rank that needs the shard first gets it first.
        for (int j = 1; j < world; ++j) gather->Push(r, 0, (r - j + world) % world, r, 0, sent);
      }
      for (int j = 0; j < world; ++j) {
        const int source = (r + j) % world;
        if (source != r) builder->Wait(r, 0, source, sent, Text("chunk ", source));
        builder->Add(r, 0, gather->ShardMatmul(r, c, source), Text("gemm chunk ", source));
      }
      builder->EndCollective(r, FusedBlocks(problem));
    }
    for (int j = 0; j < world && problem.slots.gathered_a >= 0; ++j) gather->Return(r, 0, (r + j) % world, 0);
  }
}

// Each chunk travels from neighbour to neighbour: rank r gets it from r + 1, passes it on to r - 1, and
// multiplies.
void Ring(const Problem& problem, int pieces, Gather* gather, Builder* builder) {
  const int world = problem.world_size, lanes = builder->lanes();
  const int sent = builder->Signals((world - 1) * pieces);
  // Only the neighbour's memory is written; the chunks' way around the ring closes the program.
  if (gather->direct() || builder->InBulk()) {
    builder->Enter([world](int a, int b) { return (a + 1) % world == b || (b + 1) % world == a; });
  }
  for (int r = 0; r < world; ++r) {
    const int from = (r + 1) % world, to = (r - 1 + world) % world;
    for (int j = 0; j < world; ++j) {
      const int source = (r + j) % world;
      for (int i = 0; i < pieces; ++i) {
        const int lane = (i + j) % lanes;
        if (j > 0) builder->Wait(r, lane, from, sent + (j - 1) * pieces + i, Text("chunk ", source));
        if (j < world - 1) gather->Push(r, lane, to, source, i, sent + j * pieces + i);
        gather->Multiply(r, lane, source, i);
        gather->Return(r, lane, source, i);
      }
    }
    gather->Round(r, 0);
  }
}

// `view`, packed in whatever order, as a row: for what only moves bytes.
View AsRow(const View& view) { return Packed(view.ref, view.dtype, {Elements(view)}); }

// Gathers `own` of all ranks, rank-major, into `whole[rank]` by NCCL.
void GatherByNccl(const std::vector<View>& own, const std::vector<View>& whole, uint64_t pack,
                  Builder* builder) {
  for (int r = 0; r < builder->world_size(); ++r) {
    NcclStep nccl;
    nccl.kind = NcclKind::kAllGather;
    View shard = DropDim(Slice(whole[r], 0, 0, 1), 0);  // as it lies in the whole
    if (!LieAlike(own[r], shard)) {
      shard.ref = builder->Workspace(r, pack);
      builder->Copy(r, 0, own[r], shard, false, "pack");
    } else {
      shard.ref = own[r].ref;
    }
    nccl.in = AsRow(shard);
    nccl.out = AsRow(whole[r]);
    builder->Add(r, 0, nccl, "all-gather");
  }
}

// `own` and `whole` of a tensor as an exchange has them, `as_bytes` if they are contiguous.
ExchangeViews GatherViews(const std::vector<View>& own, const std::vector<View>& whole, bool as_bytes) {
  const auto as = [as_bytes](const View& view) {
    return as_bytes ? Packed(view.ref, DType::kU8, {static_cast<int64_t>(Bytes(view))}) : view;
  };
  ExchangeViews views;
  for (size_t r = 0; r < own.size(); ++r) {
    views.sent.emplace_back(own.size(), as(own[r]));
    views.placed.emplace_back();
    for (int64_t source = 0; source < static_cast<int64_t>(own.size()); ++source) {
      views.placed[r].push_back(as(DropDim(Slice(whole[r], 0, source, 1), 0)));
    }
  }
  return views;
}

// A shard packed as `shard`, followed by the other ranks' shards: one dimension more, in front.
View WholeShape(const View& shard, int world, const Ref& ref) {
  View whole = shard;
  whole.ref = ref;
  whole.extent.insert(whole.extent.begin(), world);
  whole.stride.insert(whole.stride.begin(), Elements(shard));
  return whole;
}

// `collective` first, then the product. By copy engines on two lanes: lane 1 has what is only for this rank.
// Peers write the gathered A itself. But a client's packets are only found in their halves: the kernel copies
// them to the gathered A. Returns whether the gathered A is in its slot from the start.
bool UnfusedGather(const Problem& problem, Algorithm collective, Gather* gather, Builder* builder) {
  const int world = problem.world_size, dim = problem.dim;
  const bool by_nccl = collective == Algorithm::kNccl, copy_engine = collective == Algorithm::kCopyEngine;
  const int own_lane = builder->lanes() - 1;
  const bool scales_travel = problem.scales_travel();
  const View a = problem.Slot(0, problem.slots.a);
  const uint64_t slice_bytes = Bytes(a);
  const bool returns = problem.slots.gathered_a >= 0;
  const bool direct = !(problem.in_client() && collective == Algorithm::kLowLatency);
  // The slot itself is written where its layout is rank-major: by this rank, or by peers if it is symmetric.
  const bool in_slot = returns && (by_nccl || !direct || problem.symmetric(problem.slots.gathered_a)) &&
                       IsContiguous(RankMajor(problem.Slot(0, problem.slots.gathered_a), dim, world));
  const uint64_t pack = builder->Reserve(by_nccl && !IsContiguous(a) ? slice_bytes : 0);
  const uint64_t whole = builder->ReserveSteady(in_slot ? 0 : slice_bytes * static_cast<uint64_t>(world));
  uint64_t scale_pack = 0, scale_whole = 0;
  std::vector<View> pieces = {a};
  if (scales_travel) {
    pieces.push_back(ScaleAView(problem, 0));
    scale_pack = builder->Reserve(by_nccl ? Bytes(pieces[1]) : 0);
    scale_whole = builder->ReserveSteady(Bytes(pieces[1]) * static_cast<uint64_t>(world));
  }
  Exchange exchange(pieces, direct, builder);
  std::vector<View> own, all, own_scale, all_scale;
  for (int r = 0; r < world; ++r) {
    own.push_back(problem.Slot(r, problem.slots.a));
    all.push_back(in_slot ? RankMajor(problem.Slot(r, problem.slots.gathered_a), dim, world)
                          : WholeShape(PackedLike(a, {}), world, builder->Steady(r, whole)));
    if (!scales_travel) continue;
    own_scale.push_back(ScaleAView(problem, r));
    // In the order in which rank 0's factors lie, as products want them.
    all_scale.push_back(WholeShape(PackedInOrder(pieces[1], {}), world, builder->Steady(r, scale_whole)));
  }
  if (by_nccl) {
    if (scales_travel) GatherByNccl(own_scale, all_scale, scale_pack, builder);
    GatherByNccl(own, all, pack, builder);
  } else {
    // As bytes one kernel moves A and its scales.
    const auto as_packed = [&](const View& scale) { return LieAlike(scale, PackedInOrder(pieces[1], {})); };
    const bool as_bytes = scales_travel && std::all_of(own.begin(), own.end(), IsContiguous<Ref>) &&
                          std::all_of(own_scale.begin(), own_scale.end(), as_packed);
    std::vector<ExchangeViews> tensors = {GatherViews(own, all, as_bytes)};
    if (scales_travel) tensors.push_back(GatherViews(own_scale, all_scale, as_bytes));
    for (int r = 0; r < world && !copy_engine; ++r) {
      builder->BeginCollective(r, 0, collective, Op::kAllGather, tensors[0].sent[static_cast<size_t>(r)][0],
                               all[r], ReduceOp::kSum, 1, SendsDensePackets(problem));
    }
    const bool enters = direct && (in_slot || builder->SteadyInBulk());
    exchange.Write(tensors, {.copy_engine = copy_engine, .enters = enters, .own_lane = own_lane});
    for (int r = 0; r < world && !copy_engine; ++r) builder->EndCollective(r);
  }
  const int64_t shard = a.extent[dim];
  const auto give_back = [&](int r) {
    if (!returns || in_slot) return;
    builder->Copy(r, own_lane, MoveDim(all[r], 0, dim),
                  SplitDim(problem.Slot(r, problem.slots.gathered_a), dim, world), copy_engine,
                  "return gathered A", {builder->Last(r, 0)});
  };
  for (int r = 0; r < world; ++r) {
    if (own_lane != 0) {
      builder->Add(r, 0, NopStep{}, "own shard is there", {builder->Last(r, own_lane)});
      give_back(r);  // beside the product
    }
    const auto whole_product = [&](size_t c) {
      MatmulStep step = WholeMatmul(problem, r, c);
      step.a = MoveDim(all[r], 0, dim);  // [..., W, s, ...], as C is split
      step.c = SplitDim(step.c, dim, world);
      if (scales_travel) step.scale_a = MoveDim(all_scale[r], 0, dim);
      if (AreScalesReplicated(problem.scale_mode)) step.scale_a = SplitDim(step.scale_a, dim, world);
      return step;
    };
    const auto by_shards = [&] {
      for (int source = 0; source < world; ++source) {
        View scale;
        if (scales_travel) scale = DropDim(Slice(all_scale[r], 0, source, 1), 0);
        gather->Multiply(r, 0, DropDim(Slice(all[r], 0, source, 1), 0), scale, {source * shard, shard},
                         Text("gemm shard ", source));
      }
      gather->Round(r, 0);
    };
    // One product has no scale for each shard. Behind an outer dimension the rows lie at no common pitch.
    if (problem.one_scale_travels() || problem.last_dim() || !IsOfMatrices(whole_product(0))) {
      by_shards();
    } else {
      for (size_t c = 0; c < problem.slots.c.size(); ++c) builder->Multiply(r, 0, whole_product(c), "gemm");
    }
    if (own_lane == 0) give_back(r);
  }
  return in_slot;
}

}  // namespace

Status BuildAllGatherMatmul(const Problem& problem, Algorithm algorithm, Algorithm collective,
                            OperationPlan* plan) {
  const OpRequest& request = *problem.request;
  const int world = problem.world_size;
  const bool ring = algorithm == Algorithm::kRing && world > 1;
  const bool unfused = !Overlaps(algorithm) && world > 1;
  const int pieces = ring && request.steps > 0 ? request.steps / world : 1;
  const bool fused = algorithm == Algorithm::kFused;
  if (const auto skinny = fused ? SkinnyFor(problem) : std::nullopt) {
    plan->roundings = 1;
    if (world > 1) plan->gathered_a_bytes = problem.message_bytes;
    return BuildSkinny(problem, *skinny, plan);
  }
  const bool on_one = unfused ? collective != Algorithm::kCopyEngine : fused && problem.in_client();
  const int planned = on_one ? 1 : 2;
  const int lanes = world == 1 ? 1 : request.lanes > 0 && !fused && !unfused ? request.lanes : planned;
  // A chunk's product, its copy and its words.
  Builder builder(world, lanes, 4 * world * pieces + 32, problem.in_client());
  Gather gather(problem, pieces, !unfused, &builder);
  plan->steps = unfused ? 0 : world * pieces;
  bool in_slot = gather.direct();
  if (unfused) {
    in_slot = UnfusedGather(problem, collective, &gather, &builder);
  } else if (ring) {
    Ring(problem, pieces, &gather, &builder);
  } else if (fused && problem.in_client()) {
    FusedInClient(problem, &gather, &builder);
  } else if (fused) {
    Fused(problem, &gather, &builder);
  } else {
    Pipeline(problem, &gather, &builder);
  }
  const bool wants_a = problem.slots.gathered_a >= 0;
  if (!in_slot && (world > 1 || wants_a)) plan->gathered_a_bytes = problem.message_bytes;
  plan->roundings = 1;
  if (gather.accumulates()) {
    plan->reduction_order =
        unfused ? "over K in rank order, fp32" : "over K in the order of arrival: own shard first, fp32";
  }
  return builder.Finish(plan);
}

}  // namespace tandem::plan
