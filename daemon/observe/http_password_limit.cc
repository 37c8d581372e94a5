#include "daemon/observe/http_password_limit.h"

#include <algorithm>

namespace tandem::daemon {

HttpPasswordLimit::Clock::duration HttpPasswordLimit::WaitOf(const std::string& address,
                                                             Clock::time_point now) const {
  const auto found = full_at_.find(address);
  if (found == full_at_.end()) return Clock::duration::zero();
  // One try is there once all but one are missing at most.
  return std::max(found->second - now - limits_.interval * (limits_.burst - 1), Clock::duration::zero());
}

void HttpPasswordLimit::NoteWrong(const std::string& address, Clock::time_point now) {
  if (full_at_.size() >= limits_.addresses && !full_at_.contains(address)) {
    std::erase_if(full_at_, [&](const auto& each) { return each.second <= now; });
    if (full_at_.size() >= limits_.addresses)
      full_at_.erase(std::min_element(full_at_.begin(), full_at_.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; }));
  }
  Clock::time_point& full_at = full_at_.try_emplace(address, now).first->second;
  full_at = std::max(full_at, now) + limits_.interval;
}

}  // namespace tandem::daemon
