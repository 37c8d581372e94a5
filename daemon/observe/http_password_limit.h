// File: http_password_limit.h
//
// `HttpPasswordLimit`: a limit on the rate at which an address tries passwords. Each address has a bucket of
// `burst` tries, which is filled again by one try every `interval`. A wrong password takes a try. While the
// bucket is empty no password of the address is compared, not even the right one: an answer that differed
// for it would make further guesses worth while.
//
// Thread rule: one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

namespace tandem::daemon {

struct HttpPasswordLimits {
  int burst = 20;                            // wrong passwords in a row; at least one
  std::chrono::milliseconds interval{1000};  // between two wrong passwords after that
  size_t addresses = 1024;                   // that are remembered; the one with most tries left goes first
};

class HttpPasswordLimit {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HttpPasswordLimit(HttpPasswordLimits limits) : limits_(limits) {}

  // Time until a password of this address may be compared; zero: now.
  Clock::duration WaitOf(const std::string& address, Clock::time_point now) const;
  // The address has given a wrong password.
  void NoteWrong(const std::string& address, Clock::time_point now);
  // Addresses whose buckets are not known to be full. At most limits.addresses.
  size_t addresses() const { return full_at_.size(); }

 private:
  const HttpPasswordLimits limits_;
  // When the bucket of an address is full again. Without an entry it is full.
  std::map<std::string, Clock::time_point> full_at_;
};

}  // namespace tandem::daemon
