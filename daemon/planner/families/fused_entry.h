// File: fused_entry.h
//
// `FusedEntry`: how a fused kernel that delivers to peers meets them. A kernel of no more than one wave
// delivers as soon as it ends, so its lane meets them before it. A rank with a wave to compute before its
// first delivery need not wait for the peers to start. Lane 1 meets the peers meanwhile and then writes a
// word of this rank, for which the kernel waits before that delivery. A client has one lane and a kernel that
// meets the peers before the fused one: the handshake stands first in the expansion, and the layout lies in
// the bulk area (docs/client-placement-safety.md).
#pragma once

#include <algorithm>
#include <vector>

#include "daemon/planner/families/builder.h"
#include "daemon/planner/problem/problem.h"
#include "program/kernel_phases.h"

namespace tandem::plan {

// The CTAs of a client's fused kernel at most, for CollectiveStep::blocks: the SMs that it may have. 0: all
// of the GPU, or an engine's, which knows how many.
inline int FusedBlocks(const Problem& problem) {
  return problem.in_client() ? std::min(problem.group->kernel_sms, kMaxFusedBlocks) : 0;
}

class FusedEntry {
 public:
  // Part of the layout: before the first step. A builder of two lanes has one to meet peers on beside the
  // kernel's, lane 0.
  FusedEntry(Builder* builder, bool in_client)
      : builder_(builder), beside_(builder->lanes() > 1), in_client_(in_client) {
    if (in_client) builder->PutInBulk();
    if (beside_ || in_client) entered_ = builder->Signals();
  }

  // Where the layout lies in the bulk area, which peers may write only after an entry exchange: that
  // exchange, for all ranks. Ends the layout.
  void Handshake() {
    if (in_client_ || !builder_->InBulk()) return;
    const int lane = builder_->lanes() - 1;
    builder_->EnterOn(lane);
    if (!beside_) return;
    for (int r = 0; r < builder_->world_size(); ++r)
      builder_->Signal(r, lane, r, entered_, "peers have entered");
    awaits_.assign(static_cast<size_t>(builder_->world_size()), true);
  }

  // Within the kernel's steps, before all others: a client's handshake.
  void Begin(int rank) {
    if (!in_client_) return;
    const int world = builder_->world_size();
    for (int j = 1; j < world; ++j) builder_->Signal(rank, 0, (rank + j) % world, entered_, "entered");
    for (int j = 1; j < world; ++j) builder_->Wait(rank, 0, (rank + j) % world, entered_, "entry");
  }

  // Within the kernel's steps, before each delivery of `rank`: the first one waits.
  void BeforeDelivery(int rank) {
    if (awaits_.empty() || !awaits_[static_cast<size_t>(rank)]) return;
    builder_->Wait(rank, 0, rank, entered_, "peers have entered");
    awaits_[static_cast<size_t>(rank)] = false;
  }

 private:
  Builder* builder_;
  bool beside_, in_client_;
  int entered_ = 0;
  std::vector<bool> awaits_;  // by rank
};

}  // namespace tandem::plan
