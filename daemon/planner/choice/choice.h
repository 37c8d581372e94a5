// File: choice.h
//
// The choice of an algorithm: which can run at all, which the thresholds or the cost model prefer, and the
// reasons.
#pragma once

#include <string>
#include <vector>

#include "daemon/planner/cost/measured.h"
#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Bounds in bytes, inclusive, where nothing was measured: see bounds.h.
inline constexpr uint64_t kOneShotMaxBytes = 256 << 10;
inline constexpr uint64_t kTwoShotMaxBytes = 10 << 20;
inline constexpr uint64_t kHybridCubeMeshMaxBytes = 256 << 10;
// All-gather, reduce-scatter, broadcast, reduce, all-to-all over NVLink: by SMs up to here; above, copies by
// copy engines are faster, where the operation has them, else NCCL's.
inline constexpr uint64_t kSmMaxBytes = 8 << 20;

struct Choice {
  Algorithm algorithm = Algorithm::kAuto;
  Algorithm collective = Algorithm::kAuto;  // beside a product that it does not overlap with
  std::string reason;
  double predicted_us = 0;
  double measured_us = 0;
  std::vector<RefusedAlgorithm> refused;  // all others, in the order of AlgorithmsOf
  std::vector<std::string> warnings;
};

// Chooses for `problem`. INVALID_ARGUMENT when the asked algorithm does not belong to the operation;
// FAILED_PRECONDITION with every algorithm's reason when it cannot run, or when a fused one is required and
// none can. With `measured` the problem asks for that candidate's algorithm, and its time is the reason.
Result<Choice> Choose(const Problem& problem, const Measured* measured = nullptr);

}  // namespace tandem::plan
