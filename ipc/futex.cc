#include "ipc/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace tandem {
namespace {

// The kernel's struct futex_waitv, which older headers lack.
struct KernelWaiter {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr uint32_t kSize32 = 2;
constexpr int64_t kFallbackSleepNs = 1'000'000;

timespec ToTimespec(int64_t ns) { return {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000}; }

}  // namespace

void FutexWaitAny(std::span<const FutexWaiter> waiters, int64_t timeout_ns) {
  std::array<KernelWaiter, kMaxFutexWaiters> kernel_waiters;
  size_t count = std::min(waiters.size(), kMaxFutexWaiters);
  for (size_t i = 0; i < count; ++i) {
    kernel_waiters[i] = {waiters[i].expected, reinterpret_cast<uint64_t>(waiters[i].word), kSize32, 0};
  }
  timespec deadline{};
  if (timeout_ns >= 0) {
    ::clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline = ToTimespec(deadline.tv_sec * 1'000'000'000 + deadline.tv_nsec + timeout_ns);
  }
  long rc = ::syscall(SYS_futex_waitv, kernel_waiters.data(), count, 0u,
                      timeout_ns >= 0 ? &deadline : nullptr, CLOCK_MONOTONIC);
  if (rc >= 0 || (errno != ENOSYS && errno != EPERM) || count == 0) return;
  int64_t sleep_ns = timeout_ns >= 0 ? std::min(timeout_ns, kFallbackSleepNs) : kFallbackSleepNs;
  timespec relative = ToTimespec(sleep_ns);
  ::syscall(SYS_futex, waiters[0].word, FUTEX_WAIT, waiters[0].expected, &relative, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tandem
