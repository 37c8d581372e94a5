#include "engine/launch/stream_choice.h"

#include <algorithm>

namespace tandem::engine {

uint64_t StreamChoice::Median() const {
  std::array<uint64_t, kTrialTurns> turns = turns_;
  const auto middle = turns.begin() + kTrialTurns / 2;
  std::nth_element(turns.begin(), middle, turns.end());
  return *middle;
}

void StreamChoice::Turn(uint64_t plan, uint64_t turn_ns, uint64_t now_ns) {
  if (turn_ns > limits_.longest_ns) return;
  if (WantsSwitch()) {
    if (++waited_ < kWaitBudgetTurns) return;
    wanted_ = current_;
    // A trial did not begin, or cannot be undone: in the second case the stream is looked at again soon.
    if (trying_) interval_ns_ = kShortestIntervalNs;
    trying_ = false;
    Settle(now_ns);
    GrowInterval();
    return;
  }
  if (plan_ == 0) plan_ = plan;
  if (plan != plan_) {
    if (++strangers_ == kMaxStrangers) Forget(now_ns);
    return;
  }
  strangers_ = 0;
  turns_[seen_ % kTrialTurns] = turn_ns;
  ++seen_;
  if (trying_) {
    if (seen_ == kTrialTurns) EndTrial(now_ns);
    return;
  }
  if (seen_ < kFirstTurns || now_ns < next_trial_ns_) return;
  kept_median_ns_ = Median();
  wanted_ = 1 - current_;
  waited_ = 0;
}

void StreamChoice::EndTrial(uint64_t now_ns) {
  if (Median() + limits_.margin_ns < kept_median_ns_) {
    trying_ = false;
    interval_ns_ = kShortestIntervalNs;
    Settle(now_ns);
    return;
  }
  LeaveTrial(now_ns);
  GrowInterval();
}

void StreamChoice::LeaveTrial(uint64_t now_ns) {
  wanted_ = 1 - current_;
  waited_ = 0;
  Settle(now_ns);
}

void StreamChoice::Forget(uint64_t now_ns) {
  if (trying_) {
    LeaveTrial(now_ns);  // nothing to compare with
  } else {
    seen_ = 0;
    plan_ = 0;
    strangers_ = 0;
  }
}

void StreamChoice::Switched() {
  // To the other one for a trial, or back from it.
  trying_ = !trying_;
  current_ = wanted_;
  seen_ = 0;
  strangers_ = 0;
}

void StreamChoice::Settle(uint64_t now_ns) {
  next_trial_ns_ = now_ns + interval_ns_;
  seen_ = 0;
  plan_ = 0;
  strangers_ = 0;
}

void StreamChoice::GrowInterval() { interval_ns_ = std::min(2 * interval_ns_, kLongestIntervalNs); }

}  // namespace tandem::engine
