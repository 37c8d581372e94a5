// File: forecast.h
//
// `Forecast`: which launch comes after one, learnt from what came before, and how far that is to be trusted.
// A wrong forecast costs some tens of microseconds, a right one saves some: so each wrong one asks for more
// right ones before the next is tried.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::engine {

class Forecast {
 public:
  // `needed`: how often in a row the same successor must have been seen before it is trusted.
  explicit Forecast(uint32_t needed = 2) : needed_(needed) {}

  // Notes the launch that came after, by any name. A different launch than the last one resets the trust.
  void Saw(int64_t next) {
    if (next != next_) seen_ = 0;
    next_ = next;
    if (seen_ < kMaxNeeded) ++seen_;
  }
  // Something else was to be started than what had been enqueued ahead.
  void WasWrong() {
    seen_ = 0;
    needed_ = std::min(std::max(needed_, 1u) * 4, kMaxNeeded);
  }
  bool Trusted() const { return seen_ >= needed_; }
  int64_t next() const { return next_; }

 private:
  static constexpr uint32_t kMaxNeeded = 4096;
  int64_t next_ = -1;
  uint32_t seen_ = 0, needed_;
};

}  // namespace tandem::engine
