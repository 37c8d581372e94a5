#include "daemon/supervisor/restart_policy.h"

#include <algorithm>

namespace tandem::daemon {

std::optional<std::chrono::milliseconds> RestartPolicy::OnCrash(Time now) {
  crashes_.push_back(now);
  while (now - crashes_.front() > options_.crash_loop_window) crashes_.pop_front();
  if (crashes() >= options_.crash_loop_count) return std::nullopt;
  std::chrono::milliseconds delay = options_.backoff_initial;
  for (int i = 1; i < crashes() && delay < options_.backoff_max; ++i) delay *= 2;
  return std::min(delay, options_.backoff_max);
}

std::chrono::milliseconds RestartPolicy::OnBlocked() {
  std::chrono::milliseconds delay = options_.blocked_initial;
  for (int i = 0; i < blocked_ && delay < options_.blocked_max; ++i) delay *= 2;
  ++blocked_;
  return std::min(delay, options_.blocked_max);
}

}  // namespace tandem::daemon
