// File: launch_times.h
//
// When a launch began and ended on the lanes, by events where there are some, else by the engine's clock.
#pragma once

#include <cstdint>

namespace tandem::engine {

// The known times of one launch when its end is seen: CLOCK_MONOTONIC nanoseconds, 0 where unknown.
struct LaunchObserved {
  uint64_t enqueued_ns = 0;               // this thread began to enqueue it
  uint64_t seen_ns = 0;                   // and saw its end
  uint64_t busy_until_ns = 0;             // the lanes' latest end before it
  uint64_t started_ns = 0, ended_ns = 0;  // by events
  uint64_t first_step_ns = 0,
           last_step_ns = 0;  // the earliest begin and the latest end of steps, by events
  bool alone = false;         // nothing else was on the lanes when it was enqueued
};

struct LaunchTimes {
  uint64_t start_ns = 0, end_ns = 0;
};

// By how much the clock was late at a plan's latest launch that had the events, and how long that launch
// took.
struct LaunchLags {
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t run_ns = 0;
};

// Learns `lags` from what events say and takes the rest from them. No launch begins after its first step or
// ends before its last.
LaunchTimes TimesOf(const LaunchObserved& observed, LaunchLags* lags);

}  // namespace tandem::engine
