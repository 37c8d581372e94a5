// File: fused_entry.h
//
// `FusedEntry`: how a fused kernel that delivers to peers meets them. A kernel of no more than one wave
// delivers as soon as it ends, so its lane meets them before it. A rank with a wave to compute before its
// first delivery need not wait for the peers to start. Lane 1 meets the peers meanwhile and then writes a
// word of this rank, for which the kernel waits before that delivery.
#pragma once

#include <vector>

#include "daemon/planner/families/builder.h"

namespace tandem::plan {

class FusedEntry {
 public:
  // Part of the layout: before the first step. A builder of two lanes has one to meet peers on beside the
  // kernel's, lane 0.
  explicit FusedEntry(Builder* builder) : builder_(builder), beside_(builder->lanes() > 1) {
    if (beside_) entered_ = builder->Signals();
  }

  // Where the layout lies in the bulk area, which peers may write only after an entry exchange: that
  // exchange, for all ranks. Ends the layout.
  void Meet() {
    if (!builder_->InBulk()) return;
    const int lane = builder_->lanes() - 1;
    builder_->EnterOn(lane);
    if (!beside_) return;
    for (int r = 0; r < builder_->world_size(); ++r)
      builder_->Signal(r, lane, r, entered_, "peers have entered");
    awaits_.assign(static_cast<size_t>(builder_->world_size()), true);
  }

  // Within the kernel's steps, before each delivery of `rank`: the first one waits.
  void BeforeDelivery(int rank) {
    if (awaits_.empty() || !awaits_[static_cast<size_t>(rank)]) return;
    builder_->Wait(rank, 0, rank, entered_, "peers have entered");
    awaits_[static_cast<size_t>(rank)] = false;
  }

 private:
  Builder* builder_;
  bool beside_;
  int entered_ = 0;
  std::vector<bool> awaits_;  // by rank
};

}  // namespace tandem::plan
