#include "common/rate_limiter.h"

#include <algorithm>

namespace tandem {

double RateLimiter::TokensOf(const Bucket& bucket, Clock::time_point now) const {
  const double rested = std::max(std::chrono::duration<double>(now - bucket.since).count(), 0.0);
  return std::min(limit_.burst, bucket.tokens + rested * limit_.per_second);
}

bool RateLimiter::Take(const std::string& user, Clock::time_point now) {
  ForgetRested(now);
  auto [found, is_new] = buckets_.try_emplace(user, Bucket{limit_.burst, now});
  Bucket& bucket = found->second;
  bucket = {TokensOf(bucket, now), std::max(now, bucket.since)};
  if (bucket.tokens < 1) return false;
  bucket.tokens -= 1;
  return true;
}

// A full bucket is as good as none. The next look comes once there are twice as many, so it costs little.
void RateLimiter::ForgetRested(Clock::time_point now) {
  if (buckets_.size() < forget_at_) return;
  std::erase_if(buckets_, [&](const auto& entry) { return TokensOf(entry.second, now) >= limit_.burst; });
  forget_at_ = std::max<size_t>(256, 2 * buckets_.size());
}

}  // namespace tandem
