// File: fused_steps.h
//
// The expansion of a fused matmul, cut into its parts: the work of one kernel, as the steps that do the same.
// And the layout of the skinny kernel. Pure.
#pragma once

#include <vector>

#include "program/program.h"
#include "program/skinny_layout.h"
#include "tandem/status.h"

namespace tandem::runtime {

// Finished data is copied to a peer, which sees it by one word, or by several adjacent words.
struct DeliverySteps {
  const plan::CopyStep* copy = nullptr;
  const plan::SignalStep* signal = nullptr;  // the first
  int signals = 1;
};

// One part: waits, a product, perhaps waits and the sum with other ranks' products; then perhaps an own
// signal, or deliveries. The steps are the collective's.
struct FusedSteps {
  std::vector<const plan::WaitStep*> waits;
  const plan::MatmulStep* matmul = nullptr;
  std::vector<const plan::WaitStep*> sum_waits;
  const plan::ReduceStep* sum = nullptr;
  int own = -1;  // the sum's source that is the product; -1: none is
  const plan::SignalStep* done = nullptr;
  std::vector<DeliverySteps> deliveries;
};

// A fused matmul: its parts in order; the wait for an own word that stands before its first delivery, if one
// does; and the waits behind its last part. A client's begins with a word to every peer and a wait for every
// peer's, of one index, and may then push own data.
struct FusedCut {
  int handshake = -1;                 // that index; -1: an engine's
  std::vector<DeliverySteps> pushes;  // without a signal: the next push to the same rank signals
  std::vector<FusedSteps> parts;
  const plan::WaitStep* entered = nullptr;
  std::vector<const plan::WaitStep*> closing;
};

// The parts of `step`. INVALID_ARGUMENT names a step that has no place in a fused matmul of `rank`.
Result<FusedCut> CutFusedSteps(const plan::CollectiveStep& step, int rank);

// How the skinny kernel cuts `step`, which has SkinnyStep. INVALID_ARGUMENT when its views do not belong
// together, or it is more than the kernel computes.
Result<SkinnyLayout> SkinnyLayoutOf(const plan::CollectiveStep& step, int world_size);

}  // namespace tandem::runtime
