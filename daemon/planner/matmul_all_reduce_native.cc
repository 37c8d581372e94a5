// Matmul, then all-reduce of the product by one kernel a rank: two-shot on tiles of rows, whose owners interleave. The
// kernel computes its partial sums of the peers' tiles first, and a tile of its own one group of tiles after the peers computed
// theirs for it, so that their sums have come: it adds them in the tile's epilogue. It delivers partial sums to owners, and sums to
// all, itself, by its smaller tiles: what a copy engine does, by whole tiles of rows with a word behind each, took longer than the
// products (15 µs each on four H200s). Of more than one wave of the kernel's tiles, lane 1 meets the peers meanwhile, and waits for
// their sums beside the last products. Any number of rows: the product's end may be a short tile, and the last owners may have a
// tile less (NativeCut).
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
    sent_ = builder->Signals(groups_);
    summed_ = builder->Signals(groups_);
    if (meets_beside()) entered_ = builder->Signals();
  }

  int64_t tiles() const { return cut_.tiles(); }

  // Of the program: the kernel's, and where it is more than one wave that on which peers are met.
  static int Lanes(const Problem& problem) {
    const NativeCut cut = CutOf(problem);
    return IsOneNativeWave(cut.tiles(), cut.rows, problem.n) ? 1 : 2;
  }
  // Peers may write the bulk area. Only deliveries touch them: the kernel, which has a wave to compute before the first, need not
  // wait for it to start.
  void Enter() {
    builder_->EnterOn(side_lane());
    for (int r = 0; r < world_ && meets_beside(); ++r) builder_->Signal(r, side_lane(), r, entered_, "peers have entered");
    awaits_entry_.assign(static_cast<size_t>(world_), meets_beside());
  }

  void Write(int r) {
    builder_->BeginCollective(r, 0, Algorithm::kNative, Op::kMatmulAllReduce, problem_.Slot(r, problem_.slots.a),
                              problem_.Slot(r, problem_.slots.c[0]), ReduceOp::kSum);
    for (int g = 0; g <= groups_; ++g) {
      for (int owner : OwnersAfter(r, g)) MultiplyFor(r, owner, g);
      if (Owns(r, g - 1)) MultiplyAndSum(r, g - 1);
    }
    builder_->EndCollective(r);
    for (int g = 0; g < groups_; ++g) {
      for (int owner : OwnersAfter(r, g)) Take(r, owner, g);
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
  int side_lane() const { return builder_->lanes() - 1; }
  bool meets_beside() const { return builder_->lanes() > 1; }
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
    AwaitEntry(r);
    builder_->Copy(r, 0, Staged(r, owner, group), Landed(owner, r, group), true, Text("tile to ", owner));
    builder_->Signal(r, 0, owner, sent_ + group);
  }
  void MultiplyAndSum(int r, int group) {
    const View sum_to = Out(r, r, group);
    ReduceStep sum;
    sum.dst = sum_to;
    builder_->Add(r, 0, Product(r, r, group, sum.dst), Text("gemm tile ", group, " of ", r));
    for (int source = 0; source < world_; ++source) {
      if (source != r) builder_->Wait(r, 0, source, sent_ + group, Text("tile from ", source));
      sum.sources.push_back(source == r ? sum.dst : Landed(r, source, group));
    }
    AddEpilogue(problem_, r, -1, &sum);
    builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    // The peers have sent their parts of this tile in this launch: their symmetric output may be written, and what they staged
    // for the tile is no longer needed.
    AwaitEntry(r);
    for (int j = 1; j < world_; ++j) {
      const int peer = (r + j) % world_;
      builder_->Copy(r, 0, sum_to, in_place_ ? OnRank(sum_to, peer) : SumAt(peer, r, group), true, Text("result to ", peer));
      builder_->Signal(r, 0, peer, summed_ + group);
    }
  }
  // Before `r`'s first delivery.
  void AwaitEntry(int r) {
    if (awaits_entry_.empty() || !awaits_entry_[static_cast<size_t>(r)]) return;
    builder_->Wait(r, 0, r, entered_, "peers have entered");
    awaits_entry_[static_cast<size_t>(r)] = false;
  }

  void Take(int r, int owner, int group) {
    builder_->Wait(r, side_lane(), owner, summed_ + group, Text("result of ", owner));
    if (!in_place_) builder_->Copy(r, side_lane(), SumAt(r, owner, group), Out(r, owner, group), true, "copy out");
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
  int sent_ = 0, summed_ = 0, entered_ = 0;
  std::vector<bool> awaits_entry_;  // by rank
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
