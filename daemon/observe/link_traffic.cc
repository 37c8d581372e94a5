#include "daemon/observe/link_traffic.h"

#include <numeric>

namespace tandem::daemon {
namespace {

double SlowestLink(const std::string& from, const std::vector<int>& gpus,
                   std::span<const std::string> gpu_uuids, std::span<const LinkRate> links) {
  double slowest = 0;
  for (const LinkRate& link : links) {
    if (link.from != from) continue;
    for (int gpu : gpus) {
      if (gpu_uuids[static_cast<size_t>(gpu)] != link.to) continue;
      if (slowest == 0 || link.gb_per_second < slowest) slowest = link.gb_per_second;
    }
  }
  return slowest;
}

}  // namespace

std::vector<SentRate> SentRates(std::span<const std::vector<PlanStats>> plans,
                                const std::map<uint64_t, std::vector<int>>& gpus_of_plan,
                                std::span<const std::string> gpu_uuids, std::span<const LinkRate> links) {
  std::vector<SentRate> rates;
  for (const auto& [plan_id, gpus] : gpus_of_plan) {
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      const auto gpu = static_cast<size_t>(gpus[rank]);
      if (gpu >= plans.size() || gpu >= gpu_uuids.size()) continue;
      SentRate rate{.plan_id = plan_id, .rank = static_cast<int>(rank), .gpu = gpus[rank]};
      uint64_t ended = 0, timed = 0, run_ns = 0;
      for (const PlanStats& row : plans[gpu]) {
        if (row.plan_id != plan_id) continue;
        rate.bytes += row.bytes_moved;
        ended += row.launches - row.failures;
        timed += std::accumulate(row.histogram.begin(), row.histogram.end(), uint64_t{0});
        run_ns += row.run_ns;
      }
      if (rate.bytes == 0) continue;
      // A launch is timed a little after it is counted: mean bytes over mean time. 1 byte a nanosecond is 1
      // GB/s.
      if (timed > 0 && run_ns > 0) {
        rate.gb_per_second = static_cast<double>(rate.bytes) / static_cast<double>(ended) *
                             static_cast<double>(timed) / static_cast<double>(run_ns);
      }
      rate.link_gb_per_second = SlowestLink(gpu_uuids[gpu], gpus, gpu_uuids, links);
      if (rate.link_gb_per_second > 0) rate.link_fraction = rate.gb_per_second / rate.link_gb_per_second;
      rates.push_back(rate);
    }
  }
  return rates;
}

}  // namespace tandem::daemon
