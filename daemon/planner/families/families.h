// File: families.h
//
// One function per family of algorithms: each writes all ranks' programs of a validated problem into a plan,
// with what the plan reports about numbers (wire type, order, roundings, determinism). docs/algorithms.md
// describes them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "daemon/planner/families/builder.h"
#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Workspace for one packed piece from each peer: the slot of `source` in the memory of `receiver`. One slot a
// peer, none for the receiver itself.
class PeerSlots {
 public:
  PeerSlots(Builder* builder, uint64_t bytes)
      : builder_(builder),
        stride_((bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment) {
    base_ = builder->Reserve(stride_ * static_cast<uint64_t>(builder->world_size() - 1));
  }
  Ref At(int receiver, int source) const {
    const int world = builder_->world_size();
    const int position = (source - receiver + world) % world - 1;
    return builder_->Workspace(receiver, base_ + stride_ * static_cast<uint64_t>(position));
  }

 private:
  Builder* builder_;
  uint64_t stride_;
  uint64_t base_ = 0;
};

// An all-reduce of any tensors of equal shape: in[r] of all ranks into out[r] of each, times `mean`.
// `in_place`: peers may write out[r] once their parts of it have come. `copy_engine`: copies by copy engines,
// for steps outside of a collective.
struct AllReduceViews {
  std::vector<View> in, out;
  float mean = 1.0f;
  ReduceOp combine = ReduceOp::kSum;
  bool in_place = false;
  bool copy_engine = false;
};
class AllReduceSteps {
 public:
  // Reserves what `shots` (1 or 2) need for tensors laid out like `in` and `out`; where they lie is not read.
  AllReduceSteps(const View& in, const View& out, int shots, bool in_place, Builder* builder);
  // The steps on lane 0, usually within a collective that is open on every rank.
  void Write(const AllReduceViews& views);

 private:
  void WriteOneShot(const AllReduceViews& views);
  void WriteTwoShot(const AllReduceViews& views);

  Builder* builder_;
  int shots_;
  std::vector<PeerSlots> inbox_;  // partial sums; with two shots also results
};

// Tensors whose pieces every rank sends to every other: gathered or exchanged, or summed in rank order.
struct ExchangeViews {
  // By rank and peer: what goes there (equal shapes everywhere), and where what comes from there belongs;
  // [r][r] stays on r.
  std::vector<std::vector<View>> sent, placed;
  // By rank, sources left out: the sum of what was sent to it, instead of `placed`.
  std::vector<ReduceStep> sums;
};
class Exchange {
 public:
  // Reserves for `pieces`, what each rank sends to each of one tensor after the other; where they lie is not
  // read. `direct`: peers write `placed` themselves.
  Exchange(std::span<const View> pieces, bool direct, Builder* builder);
  struct Manner {
    bool copy_engine = false;
    bool enters = false;  // `placed` are symmetric slots: peers write there after an entry exchange
    int own_lane = 0;     // of the copies of pieces that stay; other lanes wait for them by Builder::Last
  };
  // The steps on lane 0, but for own copies.
  void Write(std::span<const ExchangeViews> tensors, const Manner& manner);

 private:
  Builder* builder_;
  bool direct_;
  std::vector<PeerSlots> slots_;  // by tensor
};

// Collectives of a world of one rank: a copy from input to output, or nothing in place.
Status BuildLocalCollective(const Problem& problem, OperationPlan* plan);
// All-reduce by symmetric memory: kOneShot, kTwoShot, kCopyEngine (two shots), kHybridCubeMesh, kLowLatency.
Status BuildAllReduce(const Problem& problem, Algorithm algorithm, OperationPlan* plan);
// All-gather, reduce-scatter, all-to-all by kSm or kCopyEngine.
Status BuildExchange(const Problem& problem, Algorithm algorithm, OperationPlan* plan);
// Broadcast and reduce by kSm.
Status BuildRooted(const Problem& problem, Algorithm algorithm, OperationPlan* plan);
// Any collective without a matmul by kNccl.
Status BuildNccl(const Problem& problem, OperationPlan* plan);
// Barrier and empty by kDirect: no steps.
Status BuildBarrier(const Problem& problem, OperationPlan* plan);
Status BuildSendReceive(const Problem& problem, OperationPlan* plan);
Status BuildAsyncInputMatmul(const Problem& problem, OperationPlan* plan);
// kPipeline, kRing, kFused; and the product and `collective` one after the other: kUnfused, kLowLatency,
// kNccl.
Status BuildAllGatherMatmul(const Problem& problem, Algorithm algorithm, Algorithm collective,
                            OperationPlan* plan);
Status BuildMatmulReduceScatter(const Problem& problem, Algorithm algorithm, Algorithm collective,
                                OperationPlan* plan);
// The same with kTiledTwoShot and kFused.
Status BuildMatmulAllReduce(const Problem& problem, Algorithm algorithm, Algorithm collective,
                            OperationPlan* plan);
// kFused; the plan's numbers are set by the former.
Status BuildFusedMatmulAllReduce(const Problem& problem, OperationPlan* plan);

// Adds the norm of a problem that has one, after the programs of the sum.
void AppendNorm(const Problem& problem, OperationPlan* plan);
// Chooses the norm's kernel, by the kernels of the sums.
void ChooseNormKernel(OperationPlan* plan);

// Sets the numbers of a sum of `dtype` elements in `order` ("rank order"), with `roundings` where it is in
// fp32. Integers are summed in their own type, modulo its width, and never rounded.
void SetSum(DType dtype, std::string_view order, int roundings, OperationPlan* plan);

// The slices of a tensor by rank, as one dimension in front: extent dim = W * s becomes [W, …, s, …].
View RankMajor(const View& view, int dim, int world_size);

}  // namespace tandem::plan
