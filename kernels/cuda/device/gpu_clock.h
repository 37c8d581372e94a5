// File: gpu_clock.h
//
// `GpuClock`: the GPU's time by the CPU's clock. An anchor is a moment that both know; between anchors the
// GPU's clock gains or loses some millionths on the CPU's, as much as it did between the last two.
//
// Thread rule: one thread at a time.
#pragma once

#include <cmath>
#include <cstdint>

namespace tandem::cuda {

class GpuClock {
 public:
  // Paces further from the CPU's are mistakes, of a look that came late, and change nothing.
  static constexpr double kMaxDrift = 1e-4;

  bool anchored() const { return anchor_ns_ != 0; }
  // The latest anchor, by the CPU's clock.
  int64_t anchor_ns() const { return anchor_ns_; }
  // A new anchor at `at_ns` by the CPU's clock; `passed_ms` of the GPU's lie between the one before and it
  // (any, for the first).
  void Anchor(int64_t at_ns, double passed_ms) {
    if (anchored() && passed_ms > 0) {
      const double pace = static_cast<double>(at_ns - anchor_ns_) / (passed_ms * 1e6);
      if (std::abs(pace - 1) < kMaxDrift) pace_ = pace;
    }
    anchor_ns_ = at_ns;
  }
  // The CPU's time of what came `after_ms` of the GPU's behind the anchor, or before it.
  int64_t TimeNs(double after_ms) const { return anchor_ns_ + static_cast<int64_t>(after_ms * 1e6 * pace_); }

 private:
  int64_t anchor_ns_ = 0;
  double pace_ = 1;  // nanoseconds of the CPU's clock in one of the GPU's
};

}  // namespace tandem::cuda
