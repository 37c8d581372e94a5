#include "kernels/host/word_wait.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "common/spin_budget.h"

namespace tandem::host {
namespace {

constexpr std::chrono::microseconds kYieldFor{20};
constexpr int64_t kLongestSleepNs = 50'000;
constexpr int64_t kLongestOldSleepNs = 1'000'000;

thread_local SpinBudget spin_budget;

void CpuPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Backoff::~Backoff() {
  if (spins_ > 0) spin_budget.End(!yielded_);
}

void Backoff::Pause() {
  if (spins_ == 0) {
    most_spins_ = spin_budget.Begin();
    start_ = std::chrono::steady_clock::now();
  }
  if (spins_ < most_spins_) {
    ++spins_;
    CpuPause();
    return;
  }
  yielded_ = true;
  auto waited = std::chrono::steady_clock::now() - start_;
  if (waited < kYieldFor) {
    sched_yield();
    return;
  }
  int64_t waited_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count();
  int64_t longest = std::clamp(waited_ns / 1000, kLongestSleepNs, kLongestOldSleepNs);
  int64_t sleep_ns = std::clamp<int64_t>(waited_ns / 8, 2'000, longest);
  timespec duration{0, sleep_ns};
  nanosleep(&duration, nullptr);
}

bool WaitUntilReached(const std::atomic<uint64_t>& word, uint64_t value, const std::atomic<bool>& abandoned) {
  Backoff backoff;
  while (!Reached(word.load(std::memory_order_acquire), value)) {
    if (abandoned.load(std::memory_order_relaxed)) return false;
    backoff.Pause();
  }
  return true;
}

void UsePreciseSleeps() { prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

int64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace tandem::host
