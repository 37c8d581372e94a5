// Matmul, then all-reduce of the product by one kernel a rank: two-shot on tiles of rows, whose owners interleave. The
// kernel computes its partial sums of the peers' tiles first, and a tile of its own one group of tiles after the peers computed
// theirs for it, so that their sums have come: it adds them in the tile's epilogue. Partial sums travel to owners, and sums to all,
//   direct   stored by the kernel itself, where it is one wave of tiles; behind it the lane waits for the peers' sums;
//   pushed   by lane 1, which the kernel tells when a tile is complete, beside the next tiles' products; a lane for each peer was
//            slower (485 µs for 453, four H200s, 2048×8192×7168). Where C is not symmetric lane 2 takes the peers' sums, so that
//            none of them stands before a push.
// See the native matmul→reduce-scatter for the reason. Any number of rows: the product's end may be a short tile, and the last
// owners may have a tile less (NativeCut).
#include "daemon/planner/families.h"
#include "daemon/planner/few_rows.h"
#include "daemon/planner/matmul_parts.h"
#include "daemon/planner/native_checks.h"
#include "daemon/planner/text.h"

namespace tandem::plan {
namespace {

class NativeTwoShot {
 public:
  NativeTwoShot(const Problem& problem, Builder* builder)
      : problem_(problem), builder_(builder), world_(problem.world_size) {
    const View c = FoldedRows(problem.Slot(0, problem.slots.c[0]));
    cut_ = CutOf(problem);
    groups_ = cut_.groups;
    tile_ = Packed(Ref{}, problem.wire, {cut_.rows, c.extent[1]});
    in_place_ = problem.symmetric(problem.slots.c[0]);
    for (int g = 0; g < groups_; ++g) {
      stage_.emplace_back(builder, Bytes(tile_));
      inbox_.emplace_back(builder, Bytes(tile_));
    }
    direct_ = IsDirect(problem);
    sent_ = builder->Signals(groups_);
    summed_ = builder->Signals(groups_);
    complete_ = direct_ ? 0 : builder->Signals(groups_ * world_);
  }

  int64_t tiles() const { return cut_.tiles(); }
  static bool IsDirect(const Problem& problem) {
    const NativeCut cut = CutOf(problem);
    return IsOneNativeWave(cut.tiles(), cut.rows, problem.n);
  }

  // Of the program: the kernel's, and where it does not deliver itself, that of the pushes and perhaps that of the takes.
  static int Lanes(const Problem& problem) {
    if (IsDirect(problem)) return 1;
    return problem.symmetric(problem.slots.c[0]) ? 2 : 3;
  }
  // Peers may write the bulk area. Only what delivers touches them: the kernel need not wait for it.
  void Enter() { builder_->EnterOn(push_lane()); }

  void Write(int r) {
    builder_->BeginCollective(r, 0, Algorithm::kNative, Op::kMatmulAllReduce, problem_.Slot(r, problem_.slots.a),
                              problem_.Slot(r, problem_.slots.c[0]), ReduceOp::kSum);
    for (int g = 0; g <= groups_; ++g) {
      for (int owner : OwnersAfter(r, g)) MultiplyFor(r, owner, g);
      if (Owns(r, g - 1)) MultiplyAndSum(r, g - 1);
    }
    builder_->EndCollective(r);
    for (int g = 0; g < groups_ + 2; ++g) {
      if (!direct_) {
        for (int owner : OwnersAfter(r, g)) Send(r, owner, g);
        if (Owns(r, g - 1)) SendSum(r, g - 1);
      }
      // A group later than the own sum: the peers' have come.
      for (int owner : OwnersAfter(r, g - 2)) Take(r, owner, g - 2);
    }
  }

 private:
  static NativeCut CutOf(const Problem& problem) { return CutNative(problem.rows, problem.n, problem.world_size); }
  // Whether there is such a group, and `owner`'s tile of it has rows.
  bool Owns(int owner, int group) const { return group >= 0 && group < groups_ && cut_.Rows(owner, group).length > 0; }
  // The owners of the group's tiles but `rank`, from the one behind it on.
  std::vector<int> OwnersAfter(int rank, int group) const {
    std::vector<int> owners;
    for (int j = 1; j < world_; ++j) {
      if (Owns((rank + j) % world_, group)) owners.push_back((rank + j) % world_);
    }
    return owners;
  }
  int push_lane() const { return direct_ ? 0 : 1; }
  int take_lane() const { return builder_->lanes() - 1; }
  int Complete(int owner, int group) const { return complete_ + group * world_ + owner; }
  View Out(int rank, int owner, int group) const {
    const Range rows = cut_.Rows(owner, group);
    return Slice(FoldedRows(problem_.Slot(rank, problem_.slots.c[0])), 0, rows.begin, rows.length);
  }
  // `rank`'s part of the sum on its way to `owner`; afterwards, unless C is symmetric, the sum that the owner sends back.
  View Staged(int rank, int owner, int group) const { return Tile(owner, group, stage_[group].At(rank, owner)); }
  View Landed(int owner, int source, int group) const { return Tile(owner, group, inbox_[group].At(owner, source)); }
  View Tile(int owner, int group, Ref ref) const {
    return Packed(ref, tile_.dtype, {cut_.Rows(owner, group).length, tile_.extent[1]});
  }

  MatmulStep Product(int r, int owner, int group, const View& target) const {
    const Range rows = cut_.Rows(owner, group);
    MatmulStep step = PartialMatmul(problem_, r, 0, {0, problem_.Slot(r, problem_.slots.a).extent[0]}, target);
    step.a = Slice(FoldedRows(step.a), 0, rows.begin, rows.length);
    if (IsBlockWise(problem_.scale_mode)) {
      step.scale_a = Slice(step.scale_a, 0, rows.begin, rows.length);
    } else if (step.has_scale_a && problem_.scale_mode != ScaleMode::kTensorWise) {
      step.scale_a = Slice(Flatten(step.scale_a), 0, rows.begin, rows.length);
    }
    return step;
  }

  void MultiplyFor(int r, int owner, int group) {
    builder_->Add(r, 0, Product(r, owner, group, Staged(r, owner, group)), Text("gemm tile ", group, " of ", owner));
    if (direct_) {
      Deliver(r, owner, group);
    } else {
      builder_->Signal(r, 0, r, Complete(owner, group));
    }
  }
  void MultiplyAndSum(int r, int group) {
    ReduceStep sum;
    sum.dst = Out(r, r, group);
    builder_->Add(r, 0, Product(r, r, group, sum.dst), Text("gemm tile ", group, " of ", r));
    for (int source = 0; source < world_; ++source) {
      if (source != r) builder_->Wait(r, 0, source, sent_ + group, Text("tile from ", source));
      sum.sources.push_back(source == r ? sum.dst : Landed(r, source, group));
    }
    AddEpilogue(problem_, r, -1, &sum);
    builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    if (direct_) {
      DeliverSum(r, group);
    } else {
      builder_->Signal(r, 0, r, Complete(r, group));
    }
  }

  void Send(int r, int owner, int group) {
    builder_->Wait(r, push_lane(), r, Complete(owner, group), Text("tile of ", owner));
    Deliver(r, owner, group);
  }
  void Deliver(int r, int owner, int group) {
    builder_->Copy(r, push_lane(), Staged(r, owner, group), Landed(owner, r, group), true, Text("tile to ", owner));
    builder_->Signal(r, push_lane(), owner, sent_ + group);
  }
  void SendSum(int r, int group) {
    builder_->Wait(r, push_lane(), r, Complete(r, group), "the own sum");
    DeliverSum(r, group);
  }
  // The peers have sent their parts of this tile in this launch: their symmetric output may be written, and what they staged for
  // the tile is no longer needed.
  void DeliverSum(int r, int group) {
    const View result = Out(r, r, group);
    const auto copy = [&](int peer) {
      builder_->Copy(r, push_lane(), result, in_place_ ? OnRank(result, peer) : SumAt(peer, r, group), true,
                     Text("result to ", peer));
    };
    const auto tell = [&](int peer) { builder_->Signal(r, push_lane(), peer, summed_ + group); };
    // Between a copy and a word lie microseconds in which nothing travels. All peers want all sums, so the copies go first, unless
    // the kernel does both.
    for (int j = 1; j < world_; ++j) {
      copy((r + j) % world_);
      if (direct_) tell((r + j) % world_);
    }
    for (int j = 1; j < world_ && !direct_; ++j) tell((r + j) % world_);
  }
  void Take(int r, int owner, int group) {
    builder_->Wait(r, take_lane(), owner, summed_ + group, Text("result of ", owner));
    if (!in_place_) builder_->Copy(r, take_lane(), SumAt(r, owner, group), Out(r, owner, group), true, "copy out");
  }
  View SumAt(int rank, int owner, int group) const { return Staged(rank, owner, group); }

  const Problem& problem_;
  Builder* builder_;
  int world_;
  NativeCut cut_;
  int groups_ = 1;
  View tile_;  // shape of a whole one, packed
  bool in_place_ = false;  // peers write the output
  std::vector<PeerSlots> stage_, inbox_;  // by group
  bool direct_ = false;
  int sent_ = 0, summed_ = 0, complete_ = 0;
};

}  // namespace

Status BuildNativeMatmulAllReduce(const Problem& problem, Plan* plan) {
  if (const auto few_rows = FewRowsFor(problem)) return BuildFewRows(problem, *few_rows, plan);
  Builder builder(problem.world_size, NativeTwoShot::Lanes(problem));
  NativeTwoShot tiles(problem, &builder);
  if (builder.InBulk()) tiles.Enter();
  for (int r = 0; r < problem.world_size; ++r) tiles.Write(r);
  plan->steps = static_cast<int>(tiles.tiles());
  return builder.Finish(plan);
}

}  // namespace tandem::plan
