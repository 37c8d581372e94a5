#include "engine/launch/launch_times.h"

#include <algorithm>

namespace tandem::engine {

LaunchTimes TimesOf(const LaunchObserved& observed, LaunchLags* lags) {
  const uint64_t enqueued = observed.enqueued_ns, seen = observed.seen_ns;
  LaunchTimes times;
  if (observed.started_ns > 0) {
    times.start_ns = observed.started_ns;
    // Behind another program the lag would be that one's time.
    if (observed.alone) lags->start_ns = times.start_ns > enqueued ? times.start_ns - enqueued : 0;
  } else {
    // Lanes begin a program when the one before has ended.
    times.start_ns = std::min(std::max(enqueued + lags->start_ns, observed.busy_until_ns), seen - 1);
  }
  if (observed.first_step_ns > 0) times.start_ns = std::min(times.start_ns, observed.first_step_ns);
  if (observed.ended_ns >= times.start_ns && observed.ended_ns > 0) {
    times.end_ns = observed.ended_ns;
    lags->end_ns = seen > times.end_ns ? seen - times.end_ns : 0;
    if (observed.started_ns > 0) lags->run_ns = times.end_ns - times.start_ns;
  } else {
    // This thread may have seen this end sooner than that of the launch that had the events: this launch took
    // no less time than that one.
    const uint64_t most = seen > times.start_ns ? seen - times.start_ns : 1;
    const uint64_t least = std::clamp<uint64_t>(lags->run_ns, 1, most);
    times.end_ns = std::max(seen - std::min(seen, lags->end_ns), times.start_ns + least);
  }
  times.end_ns = std::max(times.end_ns, observed.last_step_ns);
  return times;
}

}  // namespace tandem::engine
