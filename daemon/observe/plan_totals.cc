#include "daemon/observe/plan_totals.h"

#include <algorithm>

namespace tandem::daemon {

std::map<uint64_t, PlanTotals> SumPlans(std::span<const std::vector<PlanStats>> plans) {
  std::map<uint64_t, PlanTotals> totals;
  std::map<uint64_t, PlanStats> merged;  // over GPUs
  for (const auto& gpu : plans) {
    std::map<uint64_t, PlanStats> own;  // over the rows of one GPU
    for (const auto& row : gpu) {
      PlanStats& sum = own[row.plan_id];
      sum.launches += row.launches;
      sum.failures += row.failures;
      PlanStats& all = merged[row.plan_id];
      all.launches += row.launches;
      all.failures += row.failures;
      all.bytes_moved += row.bytes_moved;
      all.run_ns += row.run_ns;
      all.max_ns = std::max(all.max_ns, row.max_ns);
      for (int i = 0; i < kDurationBuckets; ++i) all.histogram[i] += row.histogram[i];
    }
    for (const auto& [id, sum] : own) {
      totals[id].launches = std::max(totals[id].launches, sum.launches);
      totals[id].failures = std::max(totals[id].failures, sum.failures);
    }
  }
  for (const auto& [id, all] : merged) {
    PlanTotals& total = totals[id];
    total.bytes_moved = all.bytes_moved;
    total.mean_us = all.MeanUs();
    total.max_us = all.max_ns / 1e3;
    // A bucket's upper bound may lie above the longest launch that was seen.
    total.p50_us = std::min(all.PercentileUs(0.5), total.max_us);
    total.p99_us = std::min(all.PercentileUs(0.99), total.max_us);
  }
  return totals;
}

std::vector<std::vector<PlanStats>> ReadAllPlans(std::span<const StatsArea> areas) {
  std::vector<std::vector<PlanStats>> plans;
  for (const auto& area : areas) plans.push_back(area.ReadPlans());
  return plans;
}

}  // namespace tandem::daemon
