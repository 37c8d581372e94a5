// File: launch_timing.h
//
// `LaunchTiming`: when launches ran, for statistics, traces and admission. Some launches are timed by events,
// some of these step by step; the others are timed by the engine's clock and by what the events have shown
// (launch_times.h).
//
// Reading an event is a call of a microsecond or more, a sampled launch has two events a step, and its ranks'
// next launch is on its way when it ends. So events are read later, one by one: while the lanes are busy with
// another launch, or while nobody wants anything.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/launch/launch.h"
#include "engine/launch/launch_times.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

class LaunchTiming {
 public:
  // Both outlive it.
  LaunchTiming(Backend* backend, StatsArea* stats) : backend_(backend), stats_(stats) {}

  // True if a plan's launch of that number is timed by events.
  static bool IsTimed(uint64_t launch);
  // True if it is timed step by step too: then an event comes before its first kernel, and one behind it.
  bool TimesSteps(const InstalledPlan& plan, uint64_t launch) const;

  Result<TimingEvents> TakeEvents();
  void GiveBack(TimingEvents events);
  // Sets the events for the steps of the plan's launch, which is about to be enqueued: none unless it is
  // sampled, and none where events cannot be made. A launch without its sample is as good.
  void PrepareSteps(InstalledPlan* plan);

  // The known times of a launch, without its events, whose end has been seen just now.
  LaunchObserved Observe(const Launch& launch) const;
  // Counts the plan's launch, which has ended at `end_ns` with this code, and notes when it ran. `observed`:
  // of a launch whose lanes have ended, else null; if it was timed by events, they are taken over and read
  // later.
  void End(InstalledPlan* plan, Code code, uint64_t end_ns, const LaunchObserved* observed);

  // Reads an event of a launch that has ended. `arrivals_wait`: launches wait for their ranks; `lanes_busy`:
  // programs are on the lanes. False if nothing is to be read now; while true, nobody sleeps.
  bool ReadOne(bool arrivals_wait, bool lanes_busy);
  // Reads all events of a plan's launches: before the plan goes, or its events are used again.
  void ReadAll(const InstalledPlan& plan);

 private:
  // A launch that was timed by events and has ended, until they are read.
  struct Unread {
    InstalledPlan* plan = nullptr;
    TraceRecord record;       // its times are estimates
    LaunchObserved observed;  // without the events' times
    TimingEvents events;
    std::vector<runtime::StepEvents> steps;  // the plan's
    size_t next_step = 0;                    // the first that has not been read
  };
  void ReadStep(Unread& unread);
  void Finish(Unread unread);

  Backend* backend_;
  StatsArea* stats_;
  std::vector<TimingEvents> free_events_;
  std::deque<Unread> unread_;                 // their plans live
  uint64_t busy_ns_ = 0, busy_until_ns_ = 0;  // of the lanes, all programs together
  uint64_t last_end_ns_ = 0;                  // when the last end was seen
};

}  // namespace tandem::engine
