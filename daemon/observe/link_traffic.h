// File: link_traffic.h
//
// The rates at which plans send over links, beside the links' measured rates.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ipc/stats_area.h"

namespace tandem::daemon {

// The rate at which one GPU (UUID) pushes into another's memory by copy engine while nothing else runs. 1 GB
// is 10^9 bytes.
struct LinkRate {
  std::string from, to;
  double gb_per_second = 0;
};

// The rate at which one rank of a plan sends, on average over the time in which the plan's launches ran.
struct SentRate {
  uint64_t plan_id = 0;
  int rank = 0;
  int gpu = 0;
  uint64_t bytes = 0;  // in all
  double gb_per_second = 0;
  // The slowest of the links to the group's other GPUs, and gb_per_second of it; 0 if none of them was
  // measured. A link is measured one at a time: a rank whose peers are reached by links of their own may send
  // more than one of them carries.
  double link_gb_per_second = 0;
  double link_fraction = 0;
};

// The traffic of plans that have sent something, ordered by plan and rank. `plans[gpu]` as ReadPlans of that
// GPU's area gave it, several rows of one plan count together; `gpus_of_plan` has the plans' GPUs by rank.
std::vector<SentRate> SentRates(std::span<const std::vector<PlanStats>> plans,
                                const std::map<uint64_t, std::vector<int>>& gpus_of_plan,
                                std::span<const std::string> gpu_uuids, std::span<const LinkRate> links);

}  // namespace tandem::daemon
