// File: restart_policy.h
//
// `RestartPolicy`: when an engine that ended is started again. Exponential back-off over the crashes within a
// sliding window, and a fuse that blows when there were too many of them. Pure: the caller passes the time.
// Not thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace tandem::daemon {

struct RestartOptions {
  std::chrono::milliseconds backoff_initial{100};
  std::chrono::milliseconds backoff_max{10000};
  int crash_loop_count = 5;                            // that many crashes …
  std::chrono::milliseconds crash_loop_window{60000};  // … within this time blow the fuse
  // Between two starts where somebody else is in the way: no crash, and soon over or not.
  std::chrono::milliseconds blocked_initial{50};
  std::chrono::milliseconds blocked_max{500};
};

class RestartPolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit RestartPolicy(RestartOptions options) : options_(options) {}

  // Notes a crash at `now`. The delay before the next start, or nothing if the fuse has blown.
  std::optional<std::chrono::milliseconds> OnCrash(Time now);
  // Notes a start that failed, or an end, by somebody else's doing: the delay before the next start. Never
  // blows the fuse.
  std::chrono::milliseconds OnBlocked();
  // Notes a life that was long enough: what was in the way is over.
  void OnLife() { blocked_ = 0; }
  // Crashes that still count.
  int crashes() const { return static_cast<int>(crashes_.size()); }

 private:
  RestartOptions options_;
  std::deque<Time> crashes_;  // within the window, oldest first
  int blocked_ = 0;           // in a row
};

}  // namespace tandem::daemon
