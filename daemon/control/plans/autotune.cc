#include "daemon/control/plans/autotune.h"

#include <algorithm>
#include <cmath>

#include "daemon/planner/choice/placement.h"
#include "program/text.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxMeasured = 4;
// Predictions are rarely further from the truth than this.
constexpr double kWorthTrying = 1.6;

bool CanBe(const v1::MeasuredTime& time) {
  const auto sane = [](double us) { return std::isfinite(us) && us > 0 && us < 1e9; };
  return sane(time.median_us()) && sane(time.p10_us()) && sane(time.p90_us()) && time.samples() > 0 &&
         time.samples() <= 1000;
}

}  // namespace

std::vector<Algorithm> WorthMeasuring(const plan::OperationPlan& plan) {
  std::vector<Algorithm> measure = {plan.algorithm};
  for (const Algorithm algorithm : plan::OtherAlgorithms(plan)) {
    if (plan::MeasuredOnRequestOnly(algorithm)) continue;
    const auto refused = std::find_if(plan.refused.begin(), plan.refused.end(),
                                      [&](const auto& each) { return each.algorithm == algorithm; });
    if (measure.size() == kMaxMeasured || refused->predicted_us > kWorthTrying * plan.predicted_us) break;
    measure.push_back(algorithm);
  }
  if (measure.size() == 1) measure.clear();
  return measure;
}

std::string WhyNotMeasured(std::span<const v1::PrepareRequest> ranks) {
  std::string why;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].cannot_measure().empty()) continue;
    why += plan::Text(why.empty() ? "autotune has measured nothing: " : "; ", "rank ", rank, ": ",
                      ranks[rank].cannot_measure());
  }
  return why;
}

std::vector<plan::TuningCandidate> SlowestTimes(std::span<const v1::PrepareRequest> ranks) {
  std::vector<plan::TuningCandidate> slowest;
  for (const v1::MeasuredTime& time : ranks[0].times()) {
    plan::TuningCandidate candidate;
    candidate.algorithm = static_cast<Algorithm>(time.algorithm());
    slowest.push_back(candidate);
  }
  for (const v1::PrepareRequest& rank : ranks) {
    if (rank.times_size() != ranks[0].times_size() || rank.times_placement() != ranks[0].times_placement())
      return {};
    for (int i = 0; i < rank.times_size(); ++i) {
      const v1::MeasuredTime& time = rank.times(i);
      plan::TuningCandidate& candidate = slowest[static_cast<size_t>(i)];
      if (static_cast<Algorithm>(time.algorithm()) != candidate.algorithm || !CanBe(time)) return {};
      candidate.samples = std::max(candidate.samples, static_cast<int>(time.samples()));
      candidate.median_us = std::max(candidate.median_us, time.median_us());
      candidate.p10_us = std::max(candidate.p10_us, time.p10_us());
      candidate.p90_us = std::max(candidate.p90_us, time.p90_us());
    }
  }
  return slowest;
}

}  // namespace tandem::daemon
