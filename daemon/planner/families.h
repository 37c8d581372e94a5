// File: families.h
//
// One function per family of algorithms: each writes all ranks' programs of a validated problem into a plan,
// with what the plan reports about numbers (wire type, order, roundings, determinism). docs/algorithms.md
// describes them.
#pragma once

#include "daemon/planner/builder.h"
#include "daemon/planner/problem.h"

namespace tandem::plan {

// Collectives of a world of one rank: a copy from input to output, or nothing in place.
Status BuildLocalCollective(const Problem& problem, Plan* plan);
// An all-reduce of any tensors of equal shape: in[r] of all ranks into out[r] of each, times `mean`. `in_place`: peers may
// write out[r] once their parts of it have come.
struct AllReduceViews {
  std::vector<View> in, out;
  float mean = 1.0f;
  bool in_place = false;
};
// Their steps on lane 0, usually within a collective that is open on every rank. They end the builder's layout.
void AddOneShot(const AllReduceViews& views, Builder* builder);
void AddTwoShot(const AllReduceViews& views, Builder* builder);

// All-reduce by symmetric memory: kOneShot, kTwoShot, kHybridCubeMesh.
Status BuildAllReduce(const Problem& problem, Algorithm algorithm, Plan* plan);
// All-gather, reduce-scatter, all-to-all by kSm or kCopyEngine.
Status BuildExchange(const Problem& problem, Algorithm algorithm, Plan* plan);
// Broadcast and reduce by kSm.
Status BuildRooted(const Problem& problem, Algorithm algorithm, Plan* plan);
// Any collective without a matmul by kNccl.
Status BuildNccl(const Problem& problem, Plan* plan);
// Barrier and empty by kDirect: no steps.
Status BuildMeeting(const Problem& problem, Plan* plan);
Status BuildSendReceive(const Problem& problem, Plan* plan);
Status BuildAsyncInputMatmul(const Problem& problem, Plan* plan);
// kUnfused, kPipeline, kRing, kNative.
Status BuildAllGatherMatmul(const Problem& problem, Algorithm algorithm, Plan* plan);
Status BuildMatmulReduceScatter(const Problem& problem, Algorithm algorithm, Plan* plan);
// kUnfused, kTiledTwoShot, kNative.
Status BuildMatmulAllReduce(const Problem& problem, Algorithm algorithm, Plan* plan);
// kNative; the plan's numbers are set by the former.
Status BuildNativeMatmulAllReduce(const Problem& problem, Plan* plan);

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

// The slices of a tensor by rank, as one dimension in front: extent dim = W * s becomes [W, …, s, …].
View RankMajor(const View& view, int dim, int world_size);

}  // namespace tandem::plan
