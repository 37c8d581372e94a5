#include "engine/polling_pause.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "engine/launch/launch.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kYieldForNs = 10'000'000, kYieldForCrowdedNs = 60'000;
// Between two yields it looks again and again: a system call takes longer than a look, and a launch waits for
// several looks of several engines one after another.
constexpr uint64_t kHotForNs = 5'000;
// Alone on a CPU a yield is one system call.
constexpr uint64_t kLongYieldNs = 20'000;
// So many waits later it is tried again whether the CPU is still wanted by others.
constexpr unsigned kForgetAfter = 16;
constexpr uint64_t kShortestNapNs = 5'000, kLongestNapNs = 50'000;

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void Yield() { ::sched_yield(); }

void Nap(uint64_t ns) {
  timespec duration{0, static_cast<long>(ns)};
  ::nanosleep(&duration, nullptr);
}

}  // namespace

PollingPause::PollingPause() : PollingPause({NowNs, Yield, Nap}) {}

void PollingPause::Pause(bool patient) {
  if (patient) return calls_.nap(kLongestNapNs);
  if (spins_ == 0) {
    most_spins_ = budget_.Begin();
    start_ns_ = calls_.now_ns();
    if (++waits_ % kForgetAfter == 0) crowded_ = false;
  }
  if (spins_ < most_spins_) {
    ++spins_;
    return Relax();
  }
  const uint64_t now = calls_.now_ns(), waited = now - start_ns_;
  const bool first = spins_ == most_spins_;
  spins_ = most_spins_ + 1;
  if (waited < (crowded_ ? kYieldForCrowdedNs : kYieldForNs)) {
    if (!first && !crowded_ && now - yielded_ns_ < kHotForNs) return Relax();
    calls_.yield();
    yielded_ns_ = calls_.now_ns();
    if (yielded_ns_ - now > kLongYieldNs) crowded_ = true;
    return;
  }
  calls_.nap(std::clamp(waited / 8, kShortestNapNs, kLongestNapNs));
}

}  // namespace tandem::engine
