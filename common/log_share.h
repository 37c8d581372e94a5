// File: log_share.h
//
// The log's share of each user: lines about what clients do are as many as clients like. Beyond a user's
// share, or that of all users, they are counted and left out. Lines of operators and of tandemd itself are
// not bounded, and stay below what the journal takes from a service.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/rate_limiter.h"

namespace tandem::log {

// Counts what happens too often to be written each time. Thread-safe.
class Counter {
 public:
  using Clock = RateLimiter::Clock;
  // One user's events since the last report.
  struct Report {
    std::string user;  // empty: all further users together
    uint64_t events = 0;
    double seconds = 0;
  };

  void Count(const std::string& user, Clock::time_point now = Clock::now());
  // The users whose first event since their last report is `age` old.
  std::vector<Report> Take(std::chrono::milliseconds age, Clock::time_point now = Clock::now());

 private:
  struct Entry {
    uint64_t events = 0;
    Clock::time_point since;
  };
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

// Decides which lines may be written; the others are counted. Thread-safe.
class Shares {
 public:
  using Clock = RateLimiter::Clock;
  // journald takes 10,000 lines of a service in 30 s by default, and then drops all lines. All users together
  // have half of that.
  struct Limits {
    RateLimiter::Limit user = {.per_second = 10, .burst = 300};
    RateLimiter::Limit all = {.per_second = 80, .burst = 2400};
  };
  explicit Shares(Limits limits) : users_(limits.user), all_(limits.all) {}

  // Whether one more line of `user` ("uid=7") may be written.
  bool Take(const std::string& user, Clock::time_point now = Clock::now());
  Counter& left_out() { return left_out_; }

 private:
  std::mutex mutex_;
  RateLimiter users_, all_;
  Counter left_out_;
};

// Writes a line about what `user` ("uid=7") does, within its share. Thread-safe.
void WriteOf(const std::string& user, Level severity, std::string_view text);
// A connection of `user` was refused because it had too many of late. Thread-safe.
void CountRefusal(const std::string& user);
// Writes what has been counted, a line for each user and ten seconds. Call it every now and then.
void WriteCounts();

}  // namespace tandem::log
