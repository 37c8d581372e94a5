// File: fused_steps.h
//
// The expansion of a fused matmul, cut into its parts: what one kernel does, told by the steps that do the same. Pure.
#pragma once

#include <vector>

#include "daemon/planner/program.h"
#include "tandem/status.h"

namespace tandem::engine {

// What has been made is copied to a peer, who is told.
struct DeliverySteps {
  const plan::CopyStep* copy = nullptr;
  const plan::SignalStep* signal = nullptr;
};

// One part: waits, a product, perhaps waits and the sum with other ranks' products; then perhaps an own signal, or
// deliveries. The steps are the collective's.
struct FusedSteps {
  std::vector<const plan::WaitStep*> waits;
  const plan::MatmulStep* matmul = nullptr;
  std::vector<const plan::WaitStep*> sum_waits;
  const plan::ReduceStep* sum = nullptr;
  int own = -1;  // the sum's source that is the product; -1: none is
  const plan::SignalStep* done = nullptr;
  std::vector<DeliverySteps> deliveries;
};

// The parts of `step` in order. INVALID_ARGUMENT names a step that has no place in a fused matmul of `rank`.
Result<std::vector<FusedSteps>> CutFusedSteps(const plan::CollectiveStep& step, int rank);

}  // namespace tandem::engine
