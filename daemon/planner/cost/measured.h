// File: measured.h
//
// The measurements for a problem: the key and shape for the look-up in the tuning table, and the words in
// which a plan reports them.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "daemon/planner/problem/problem.h"
#include "daemon/planner/tuning/tuning_table.h"

namespace tandem::plan {

// Operations that have several algorithms, and the same request on all ranks.
bool IsTunable(Op op);

TuningKey TuningKeyOf(const Problem& problem);
TuningShape TuningShapeOf(const Problem& problem);

// The entry of the group's table that holds for a request which leaves algorithm, steps and lanes to the
// planner; else null. A product with symmetric operands that has no entry uses the entry without them. A
// product of 16-bit types or f32 also uses the entry of the other layout of B (contiguous rows or
// columns).
const TuningEntry* MeasuredFor(const Problem& problem);

// Key and shape (the rest is empty) of what the group's table has no entry for, where these requests leave
// algorithm, steps and lanes to the planner, and a time could be had; else nothing.
std::optional<TuningEntry> Unmeasured(std::span<const OpRequest> requests, const GroupContext& group);

// A candidate that is tried for a measured time.
struct Measured {
  const TuningEntry* entry = nullptr;
  const TuningCandidate* chosen = nullptr;
};
// The fastest measured candidate of this algorithm, or the one that says why it was refused, or null.
const TuningCandidate* CandidateOf(const TuningEntry& entry, Algorithm algorithm);
// "measured fastest: 12.3 us (predicted 9.1 us); 9 rounds of 2026-01-31T12:00:00Z in
// /var/lib/tandem/tuning.toml".
std::string WhyMeasured(const Problem& problem, const Measured& measured, double predicted_us);
// Why another algorithm, which could run, is not taken: "measured 20.1 us".
std::string WhyNotMeasured(const Measured& measured, Algorithm algorithm);

}  // namespace tandem::plan
