// Matmul, then all-reduce of the product by one kernel a rank, two-shot: each rank owns a part of the rows.
// The kernel computes its partial sums of the peers' rows and then its own rows, to which it adds the peers'
// sums in the tiles' epilogue. It goes by bands of columns: the peers' rows of a band, then the own rows of
// the band before, whose partial sums have come meanwhile. Its tiles deliver partial sums to owners, and sums
// to all. Copy engines, by whole parts with a word behind each, took longer than the products (15 µs each on
// four H200s), and a lane that waits for a word 4 to 8 µs. So the kernel also waits for the peers' sums where
// they arrive in C. With more than one wave of tiles, lane 1 meets the peers meanwhile, and takes their sums
// where they do not arrive in C. In a client the kernel waits there too. Any number of rows: the last part
// may be short, and the last ranks may own none (FusedTileCut).
#include "daemon/planner/families/families.h"
#include "daemon/planner/families/fused_entry.h"
#include "daemon/planner/families/skinny.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

class FusedTwoShot {
 public:
  FusedTwoShot(const Problem& problem, Builder* builder)
      : problem_(problem),
        builder_(builder),
        world_(problem.world_size),
        cut_(CutOf(problem)),
        entry_(builder, problem.in_client()) {
    const View c = FoldedRows(problem.Slot(0, problem.slots.c[0]));
    part_ = Packed(Ref{}, problem.wire, {cut_.rows, c.extent[1]});
    in_place_ = problem.symmetric(problem.slots.c[0]);
    stage_.emplace(builder, Bytes(part_));
    inbox_.emplace(builder, Bytes(part_));
    sent_ = builder->Signals(cut_.bands);
    summed_ = builder->Signals();
  }

  int64_t parts() const { return cut_.parts(); }

  // Lanes of the program: the kernel's, and with more than one wave the lane on which peers are met.
  static int Lanes(const Problem& problem) {
    if (problem.in_client()) return 1;
    const FusedTileCut cut = CutOf(problem);
    return IsOneFusedWave(cut.parts(), cut.rows, problem.n) ? 1 : 2;
  }
  void Handshake() { entry_.Handshake(); }

  void Write(int r) {
    builder_->BeginCollective(r, 0, Algorithm::kFused, Op::kMatmulAllReduce,
                              problem_.Slot(r, problem_.slots.a), problem_.Slot(r, problem_.slots.c[0]),
                              ReduceOp::kSum);
    entry_.Begin(r);
    for (int owner : PeersWithRows(r)) MultiplyFor(r, owner);
    if (Owns(r)) MultiplyAndSum(r);
    // A client's kernel waits for all that comes.
    if (in_place_ || problem_.in_client()) AwaitSums(r, 0);
    builder_->EndCollective(r, FusedBlocks(problem_));
    if (in_place_) return;
    // Sums come at about the same time, and consecutive waits are one operation of the lane.
    if (!problem_.in_client()) AwaitSums(r, side_lane());
    for (int owner : PeersWithRows(r))
      builder_->Copy(r, side_lane(), Staged(r, owner), Out(r, owner), true, "copy out");
  }

 private:
  static FusedTileCut CutOf(const Problem& problem) {
    return CutFusedTiles(problem.rows, problem.n, problem.world_size);
  }
  bool Owns(int rank) const { return cut_.Rows(rank).length > 0; }
  // From the one behind `rank` on.
  std::vector<int> PeersWithRows(int rank) const {
    std::vector<int> owners;
    for (int j = 1; j < world_; ++j) {
      if (Owns((rank + j) % world_)) owners.push_back((rank + j) % world_);
    }
    return owners;
  }
  int side_lane() const { return builder_->lanes() - 1; }
  View Out(int rank, int owner) const {
    const Range rows = cut_.Rows(owner);
    return Slice(FoldedRows(problem_.Slot(rank, problem_.slots.c[0])), 0, rows.begin, rows.length);
  }
  // `rank`'s part of the sum on its way to `owner`; afterwards, unless C is symmetric, the sum that the owner
  // sends back.
  View Staged(int rank, int owner) const { return PartOf(owner, stage_->At(rank, owner)); }
  View Landed(int owner, int source) const { return PartOf(owner, inbox_->At(owner, source)); }
  View PartOf(int owner, Ref ref) const {
    return Packed(ref, part_.dtype, {cut_.Rows(owner).length, part_.extent[1]});
  }

  MatmulStep Product(int r, int owner, const View& target) const {
    const Range rows = cut_.Rows(owner);
    MatmulStep step =
        PartialMatmul(problem_, r, 0, {0, problem_.Slot(r, problem_.slots.a).extent[0]}, target);
    step.a = Slice(FoldedRows(step.a), 0, rows.begin, rows.length);
    if (IsBlockWise(problem_.scale_mode)) {
      step.scale_a = Slice(step.scale_a, 0, rows.begin, rows.length);
    } else if (step.has_scale_a && problem_.scale_mode != ScaleMode::kTensorWise) {
      step.scale_a = Slice(Flatten(step.scale_a), 0, rows.begin, rows.length);
    }
    return step;
  }

  void MultiplyFor(int r, int owner) {
    builder_->Add(r, 0, Product(r, owner, Staged(r, owner)), Text("gemm part of ", owner));
    entry_.BeforeDelivery(r);
    builder_->Copy(r, 0, Staged(r, owner), Landed(owner, r), true, Text("part to ", owner));
    for (int band = 0; band < cut_.bands; ++band) builder_->Signal(r, 0, owner, sent_ + band);
  }
  void MultiplyAndSum(int r) {
    const View own = Out(r, r);
    ReduceStep sum;
    sum.dst = own;
    builder_->Add(r, 0, Product(r, r, own), "gemm own part");
    for (int source = 0; source < world_; ++source) {
      for (int band = 0; band < cut_.bands && source != r; ++band) {
        builder_->Wait(r, 0, source, sent_ + band, Text("part from ", source));
      }
      sum.sources.push_back(source == r ? own : Landed(r, source));
    }
    AddEpilogue(problem_, r, -1, &sum);
    builder_->Reduce(r, 0, std::move(sum), "sum in rank order");
    // The peers have sent their parts of these rows in this launch: their symmetric output may be written,
    // and what they staged for them is no longer needed.
    entry_.BeforeDelivery(r);
    for (int j = 1; j < world_; ++j) {
      const int peer = (r + j) % world_;
      builder_->Copy(r, 0, own, in_place_ ? OnRank(own, peer) : Staged(peer, r), true,
                     Text("result to ", peer));
      builder_->Signal(r, 0, peer, summed_);
    }
  }
  void AwaitSums(int r, int lane) {
    for (int owner : PeersWithRows(r)) builder_->Wait(r, lane, owner, summed_, Text("result of ", owner));
  }

  const Problem& problem_;
  Builder* builder_;
  int world_;
  FusedTileCut cut_;
  FusedEntry entry_;
  View part_;              // shape of a whole one, packed
  bool in_place_ = false;  // peers write the output
  std::optional<PeerSlots> stage_, inbox_;
  int sent_ = 0, summed_ = 0;
};

}  // namespace

Status BuildFusedMatmulAllReduce(const Problem& problem, OperationPlan* plan) {
  if (const auto skinny = SkinnyFor(problem)) return BuildSkinny(problem, *skinny, plan);
  Builder builder(problem.world_size, FusedTwoShot::Lanes(problem), 32, problem.in_client());
  FusedTwoShot parts(problem, &builder);
  parts.Handshake();
  for (int r = 0; r < problem.world_size; ++r) parts.Write(r);
  plan->steps = static_cast<int>(parts.parts());
  return builder.Finish(plan);
}

}  // namespace tandem::plan
