// File: autotune.h
//
// Algorithms for the ranks of a group to measure while they prepare a request, and the sum of their times
// (docs/tuning.md). Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/planner/tuning/tuning_table.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The algorithms that a measurement may find faster than `plan`'s, which comes first: at most four, those
// with the least predicted times. Algorithms that are measured on request only are no rivals. Empty where
// `plan` has no rival.
std::vector<Algorithm> WorthMeasuring(const plan::OperationPlan& plan);

// A warning that names the ranks that could not measure, and why; empty if all could.
std::string WhyNotMeasured(std::span<const v1::PrepareRequest> ranks);

// The times of the rank that is the slowest, by algorithm. Empty unless all ranks have measured the same
// algorithms, with times that can be.
std::vector<plan::TuningCandidate> SlowestTimes(std::span<const v1::PrepareRequest> ranks);

}  // namespace tandem::daemon
