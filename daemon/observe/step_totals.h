// File: step_totals.h
//
// The time of each step of a plan, from the sampled launches in the engines' traces.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ipc/stats_area.h"

namespace tandem::daemon {

struct StepTotals {
  int gpu = 0;
  int step = 0;
  int lane = 0;
  uint64_t samples = 0;  // of the launches that the trace still holds
  double mean_us = 0;
  double max_us = 0;
};

// `records[gpu]` is what ReadTrace of that GPU's area gave. By plan, ordered by GPU, then step.
std::map<uint64_t, std::vector<StepTotals>> SumSteps(std::span<const std::vector<TraceRecord>> records);

}  // namespace tandem::daemon
