// Reading the events of launches that were timed. A read is a call of a microsecond or more, a sampled launch
// has two events a step, and when it has ended its ranks' next launch is on its way: so events are read one
// by one, while the lanes are busy with another launch or nobody wants anything.
#include <algorithm>
#include <utility>

#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

// After so long without anything on the lanes the next launch is not imminent.
constexpr uint64_t kQuietNs = 200'000;
// With more of them unread, one is read though launches wait for ranks: they keep events, and where several
// streams take turns something may wait at any time.
constexpr size_t kMostUnread = 16;

uint64_t TimeOf(const Event* event) {
  const int64_t at = event == nullptr ? 0 : event->TimeNs();
  return at > 0 ? static_cast<uint64_t>(at) : 0;
}

}  // namespace

LaunchObserved LaunchQueue::Observe(const Launch& launch) const {
  return {.enqueued_ns = launch.start_ns,
          .seen_ns = NowNs(),
          .busy_until_ns = busy_until_ns_,
          .alone = launch.alone,
          .parked = launch.parked.on_lanes};
}

void LaunchQueue::ReadStep(EndedLaunch& ended) {
  const size_t step = ended.next_step++;
  const uint64_t begin = TimeOf(ended.steps[step].start), end = TimeOf(ended.steps[step].end);
  if (begin == 0 || end < begin) return;
  LaunchObserved& observed = ended.observed;
  if (observed.first_step_ns == 0 || begin < observed.first_step_ns) observed.first_step_ns = begin;
  observed.last_step_ns = std::max(observed.last_step_ns, end);
  const auto& lanes = ended.plan->step_lanes;
  stats_.RecordStep({.plan_id = ended.record.plan_id,
                     .group_id = ended.record.group_id,
                     .launch = ended.record.launch,
                     .start_ns = begin,
                     .end_ns = end,
                     .step = static_cast<int>(step),
                     .lane = step < lanes.size() ? lanes[step] : 0});
}

void LaunchQueue::FinishTiming(EndedLaunch ended) {
  while (ended.next_step < ended.steps.size()) ReadStep(ended);
  ended.observed.started_ns = TimeOf(ended.events.start.get());
  ended.observed.ended_ns = TimeOf(ended.events.end.get());
  const LaunchTimes times = TimesOf(ended.observed, &ended.plan->lags);
  ended.record.start_ns = times.start_ns;
  ended.record.end_ns = times.end_ns;
  stats_.Time(ended.plan->stats_row, ended.record);
  GiveBack(std::move(ended.events));
}

bool LaunchQueue::ReadEvents() {
  if (untimed_.empty() || (!undecided_.empty() && untimed_.size() < kMostUnread)) return false;
  if (in_flight_.empty() && NowNs() - front_since_ns_ < kQuietNs) return true;  // soon: nobody sleeps before
  EndedLaunch& ended = untimed_.front();
  if (ended.next_step < ended.steps.size()) {
    ReadStep(ended);
    return true;
  }
  EndedLaunch last = std::move(ended);
  untimed_.pop_front();
  FinishTiming(std::move(last));
  return true;
}

void LaunchQueue::ReadAllEvents(const Plan& plan) {
  for (auto it = untimed_.begin(); it != untimed_.end();) {
    if (it->plan != &plan) {
      ++it;
      continue;
    }
    EndedLaunch ended = std::move(*it);
    it = untimed_.erase(it);
    FinishTiming(std::move(ended));
  }
}

}  // namespace tandem::engine
