#include "common/log_share.h"

#include <cstdio>

namespace tandem::log {
namespace {

// Users with a report of their own at a time.
constexpr size_t kMaxReports = 8;
constexpr std::chrono::milliseconds kReportAge{10000};

Shares& TheShares() {
  static Shares shares{Shares::Limits{}};
  return shares;
}

Counter& TheRefusals() {
  static Counter refusals;
  return refusals;
}

void WriteReports(Counter& counter, const std::string& what) {
  for (const Counter::Report& report : counter.Take(kReportAge)) {
    char count[64];
    std::snprintf(count, sizeof count, ": %llu in %.0f s", static_cast<unsigned long long>(report.events),
                  report.seconds);
    Warning((report.user.empty() ? "further users" : report.user) + " " + what + count);
  }
}

}  // namespace

void Counter::Count(const std::string& user, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++entries_.try_emplace(user, Entry{0, now}).first->second.events;
}

std::vector<Counter::Report> Counter::Take(std::chrono::milliseconds age, Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Report> reports;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto since = now - it->second.since;
    if (since < age) {
      ++it;
      continue;
    }
    const double seconds = std::chrono::duration<double>(since).count();
    if (reports.size() <= kMaxReports) reports.push_back({it->first, 0, seconds});
    if (reports.size() > kMaxReports) reports.back().user.clear();
    reports.back().events += it->second.events;
    it = entries_.erase(it);
  }
  return reports;
}

bool Shares::Take(const std::string& user, Clock::time_point now) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (users_.Take(user, now) && all_.Take("", now)) return true;
  }
  left_out_.Count(user, now);
  return false;
}

void WriteOf(const std::string& user, Level severity, std::string_view text) {
  if (Writes(severity) && TheShares().Take(user)) Write(severity, text);
}

void CountRefusal(const std::string& user) { TheRefusals().Count(user); }

void WriteCounts() {
  WriteReports(TheShares().left_out(), "lines about this user were left out of the log");
  WriteReports(TheRefusals(), "connections were refused, because the user made too many of late");
}

}  // namespace tandem::log
