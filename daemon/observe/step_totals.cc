#include "daemon/observe/step_totals.h"

#include <algorithm>
#include <tuple>

namespace tandem::daemon {

std::map<uint64_t, std::vector<StepTotals>> SumSteps(std::span<const std::vector<TraceRecord>> records) {
  std::map<std::tuple<uint64_t, int, int>, StepTotals> by_step;  // {plan, GPU, step}
  for (size_t gpu = 0; gpu < records.size(); ++gpu) {
    for (const TraceRecord& record : records[gpu]) {
      if (record.step < 0 || record.end_ns < record.start_ns) continue;
      StepTotals& totals = by_step[{record.plan_id, static_cast<int>(gpu), record.step}];
      totals.gpu = static_cast<int>(gpu);
      totals.step = record.step;
      totals.lane = record.lane;
      const double us = static_cast<double>(record.end_ns - record.start_ns) / 1e3;
      ++totals.samples;
      totals.mean_us += us;  // the sum, until all are seen
      totals.max_us = std::max(totals.max_us, us);
    }
  }
  std::map<uint64_t, std::vector<StepTotals>> plans;
  for (auto& [key, totals] : by_step) {
    totals.mean_us /= static_cast<double>(totals.samples);
    plans[std::get<0>(key)].push_back(totals);
  }
  return plans;
}

}  // namespace tandem::daemon
