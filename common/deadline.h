// File: deadline.h
//
// Deadlines that callers give as durations, "for ever" among them.
#pragma once

#include <algorithm>
#include <chrono>

namespace tandem {

// The deadline of a launch for which neither the caller, nor the group, nor the configuration gives one.
inline constexpr std::chrono::milliseconds kDefaultLaunchDeadline = std::chrono::minutes(10);

// `duration`, not below zero and at most a year: a clock's time and such a duration can be added without
// overflow, in any unit down to nanoseconds. For whatever a public function takes.
template <typename Duration>
constexpr Duration Bounded(Duration duration) {
  return std::clamp(duration, Duration::zero(),
                    std::chrono::duration_cast<Duration>(std::chrono::hours(24 * 365)));
}

// The time left until `end`; a call that is due already has a millisecond.
inline std::chrono::milliseconds TimeLeft(std::chrono::steady_clock::time_point end) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

}  // namespace tandem
