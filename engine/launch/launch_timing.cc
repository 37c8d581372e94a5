#include "engine/launch/launch_timing.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

namespace tandem::engine {
namespace {

// Launches 1, 2, 4, 8 … of a plan, then every so many, are timed by events: their steps, and the launch as a
// whole. A launch whose steps are timed is not launched speculatively, and each step's events part it from
// the next: measured on four H200s, 40 to 250 µs.
constexpr uint64_t kTimeStepsEvery = 1024;
constexpr uint64_t kTimeEvery = 32;
constexpr size_t kMaxSampledSteps = 256;
// After so long without anything on the lanes the next launch is not imminent.
constexpr uint64_t kQuietNs = 200'000;
// With more launches unread, one event is read though launches wait for ranks: they keep events, and where
// several streams take turns something may wait at any time.
constexpr size_t kMaxUnread = 16;

bool IsSampled(uint64_t launch, uint64_t every) { return std::has_single_bit(launch) || launch % every == 0; }

uint64_t TimeOf(const Event* event) {
  const int64_t at = event == nullptr ? 0 : event->TimeNs();
  return at > 0 ? static_cast<uint64_t>(at) : 0;
}

}  // namespace

bool LaunchTiming::IsTimed(uint64_t launch) { return IsSampled(launch, kTimeEvery); }

bool LaunchTiming::TimesSteps(const InstalledPlan& plan, uint64_t launch) const {
  return stats_->traces() && IsSampled(launch, kTimeStepsEvery) &&
         plan.program->step_count() <= kMaxSampledSteps;
}

Result<TimingEvents> LaunchTiming::TakeEvents() {
  TimingEvents events;
  if (free_events_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(events.start, backend_->MakeEvent());
    TANDEM_ASSIGN_OR_RETURN(events.end, backend_->MakeEvent());
    return events;
  }
  events = std::move(free_events_.back());
  free_events_.pop_back();
  return events;
}

void LaunchTiming::GiveBack(TimingEvents events) {
  if (events) free_events_.push_back(std::move(events));
}

void LaunchTiming::PrepareSteps(InstalledPlan* plan) {
  Launch& launch = plan->active;
  launch.step_events.clear();
  if (!TimesSteps(*plan, launch.count)) return;
  const size_t steps = plan->program->step_count();
  ReadAll(*plan);  // they are used again
  while (plan->step_events.size() < 2 * steps) {
    Result<std::unique_ptr<Event>> event = backend_->MakeEvent();
    if (!event.ok()) return;
    plan->step_events.push_back(*std::move(event));
  }
  for (size_t i = 0; i < steps; ++i) {
    launch.step_events.push_back({plan->step_events[2 * i].get(), plan->step_events[2 * i + 1].get()});
  }
}

LaunchObserved LaunchTiming::Observe(const Launch& launch) const {
  return {.enqueued_ns = launch.start_ns,
          .seen_ns = NowNs(),
          .busy_until_ns = busy_until_ns_,
          .alone = launch.alone};
}

void LaunchTiming::End(InstalledPlan* plan, Code code, uint64_t end_ns, const LaunchObserved* observed) {
  Launch& launch = plan->active;
  TraceRecord record{.plan_id = plan->id,
                     .group_id = plan->group->id,
                     .launch = launch.count,
                     .arrive_ns = launch.arrive_ns,
                     .start_ns = launch.start_ns,
                     .end_ns = end_ns,
                     .code = static_cast<int32_t>(code)};
  stats_->Count(plan->stats_row, static_cast<int>(code), plan->bytes_moved);
  if (observed != nullptr && launch.events) {
    unread_.push_back({.plan = plan,
                       .record = record,
                       .observed = *observed,
                       .events = std::exchange(launch.events, {}),
                       .steps = std::exchange(launch.step_events, {})});
  } else {
    stats_->Time(plan->stats_row, record);
  }
  GiveBack(std::exchange(launch.events, {}));
  if (observed != nullptr) last_end_ns_ = observed->seen_ns;
  if (launch.start_ns == 0) return;
  const uint64_t from = std::max(launch.start_ns, busy_until_ns_);
  if (end_ns <= from) return;
  busy_ns_ += end_ns - from;
  busy_until_ns_ = end_ns;
  stats_->SetGpuTime(busy_ns_);
}

void LaunchTiming::ReadStep(Unread& unread) {
  const size_t step = unread.next_step++;
  const uint64_t begin = TimeOf(unread.steps[step].start), end = TimeOf(unread.steps[step].end);
  if (begin == 0 || end < begin) return;
  LaunchObserved& observed = unread.observed;
  if (observed.first_step_ns == 0 || begin < observed.first_step_ns) observed.first_step_ns = begin;
  observed.last_step_ns = std::max(observed.last_step_ns, end);
  const auto& lanes = unread.plan->step_lanes;
  stats_->RecordStep({.plan_id = unread.record.plan_id,
                      .group_id = unread.record.group_id,
                      .launch = unread.record.launch,
                      .start_ns = begin,
                      .end_ns = end,
                      .step = static_cast<int>(step),
                      .lane = step < lanes.size() ? lanes[step] : 0});
}

void LaunchTiming::Finish(Unread unread) {
  while (unread.next_step < unread.steps.size()) ReadStep(unread);
  unread.observed.started_ns = TimeOf(unread.events.start.get());
  unread.observed.ended_ns = TimeOf(unread.events.end.get());
  const LaunchTimes times = TimesOf(unread.observed, &unread.plan->lags);
  unread.record.start_ns = times.start_ns;
  unread.record.end_ns = times.end_ns;
  stats_->Time(unread.plan->stats_row, unread.record);
  GiveBack(std::move(unread.events));
}

bool LaunchTiming::ReadOne(bool arrivals_wait, bool lanes_busy) {
  if (unread_.empty() || (arrivals_wait && unread_.size() < kMaxUnread)) return false;
  if (!lanes_busy && NowNs() - last_end_ns_ < kQuietNs) return true;  // soon
  Unread& first = unread_.front();
  if (first.next_step < first.steps.size()) {
    ReadStep(first);
    return true;
  }
  Unread last = std::move(first);
  unread_.pop_front();
  Finish(std::move(last));
  return true;
}

void LaunchTiming::ReadAll(const InstalledPlan& plan) {
  for (auto it = unread_.begin(); it != unread_.end();) {
    if (it->plan != &plan) {
      ++it;
      continue;
    }
    Unread unread = std::move(*it);
    it = unread_.erase(it);
    Finish(std::move(unread));
  }
}

}  // namespace tandem::engine
