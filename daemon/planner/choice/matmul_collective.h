// File: matmul_collective.h
//
// The collective beside a product where the two come one after the other: kLowLatency's one kernel, NCCL's,
// or for kUnfused whatever a collective of that size would be.
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

struct MatmulCollective {
  // kAuto where none can run, and for algorithms that overlap.
  Algorithm algorithm = Algorithm::kAuto;
  std::string reason;       // why this one, or why none
  double predicted_us = 0;  // by itself; 0 where it was not chosen by prediction or bound
};

// For an operation with a matmul that `algorithm` can run; kUnfused: whether it can is what the answer says.
// kUnfused plans the collective as a separate request: by the bounds and the cost model of collectives, with
// NCCL for requests that their builders cannot take.
MatmulCollective CollectiveBeside(const Problem& problem, Algorithm algorithm);

// "all-gather by copy_engine (why; predicted 68.4 us alone), then the product".
std::string UnfusedText(const Problem& problem, const MatmulCollective& collective);

}  // namespace tandem::plan
