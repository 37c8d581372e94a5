#include "daemon/engine/polling_pause.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "daemon/engine/launch.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kYieldForNs = 60'000;
constexpr uint64_t kLongestNapNs = 50'000;

void Nap(uint64_t ns) {
  timespec duration{0, static_cast<long>(ns)};
  ::nanosleep(&duration, nullptr);
}

}  // namespace

void PollingPause::Pause(bool patient) {
  if (patient) return Nap(kLongestNapNs);
  if (spins_ == 0) {
    most_spins_ = budget_.Begin();
    start_ns_ = NowNs();
  }
  if (spins_ < most_spins_) {
    ++spins_;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return;
  }
  spins_ = most_spins_ + 1;
  uint64_t waited = NowNs() - start_ns_;
  if (waited < kYieldForNs) {
    ::sched_yield();
    return;
  }
  Nap(std::clamp<uint64_t>(waited / 8, 5'000, kLongestNapNs));
}

}  // namespace tandem::engine
