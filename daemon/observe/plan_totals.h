// File: plan_totals.h
//
// A plan's statistics over all its GPUs, from the engines' shared stats areas.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ipc/stats_area.h"

namespace tandem::daemon {

struct PlanTotals {
  uint64_t launches = 0;  // of the plan: each rank counts it once, this is the rank that has ended most
  uint64_t failures = 0;
  uint64_t bytes_moved = 0;  // by all ranks
  double mean_us = 0;        // from start to end, over all ranks
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

// `plans[gpu]` is what ReadPlans of that GPU's area gave. A GPU may have several rows of one plan (its engine
// was restarted): they count together.
std::map<uint64_t, PlanTotals> SumPlans(std::span<const std::vector<PlanStats>> plans);

// ReadPlans of each area.
std::vector<std::vector<PlanStats>> ReadAllPlans(std::span<const StatsArea> areas);

}  // namespace tandem::daemon
