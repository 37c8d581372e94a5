// File: rate_limiter.h
//
// `RateLimiter`: how often each of many users may do something. A user has a bucket of tokens that fills at a
// steady rate; each event takes one. Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

namespace tandem {

class RateLimiter {
 public:
  using Clock = std::chrono::steady_clock;
  struct Limit {
    double per_second = 0;  // over a long time
    double burst = 1;       // at once, after a rest
  };

  explicit RateLimiter(Limit limit) : limit_(limit) {}

  // Takes one token of `user`. False, and nothing is taken, if the bucket is empty.
  bool Take(const std::string& user, Clock::time_point now = Clock::now());
  // Buckets that are not full, and some that are.
  size_t users() const { return buckets_.size(); }

 private:
  struct Bucket {
    double tokens;
    Clock::time_point since;  // when it had so many
  };
  double TokensOf(const Bucket& bucket, Clock::time_point now) const;
  void ForgetRested(Clock::time_point now);

  const Limit limit_;
  std::map<std::string, Bucket> buckets_;
  size_t forget_at_ = 256;  // users
};

}  // namespace tandem
