// File: futex.h
//
// Futexes in shared memory: sleeping on one word or on many, and waking who sleeps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

// The most words that one FutexWaitAny takes (the kernel's FUTEX_WAITV_MAX).
inline constexpr size_t kMaxFutexWaiters = 128;

// A word to sleep on while it holds `expected`.
struct FutexWaiter {
  std::atomic<uint32_t>* word = nullptr;
  uint32_t expected = 0;
};

// Sleeps until one of `waiters` is woken or no longer holds its expected value, at most `timeout_ns`
// (negative: for ever). Spurious returns are allowed. On kernels without futex_waitv it sleeps 1 ms at most
// on the first word.
void FutexWaitAny(std::span<const FutexWaiter> waiters, int64_t timeout_ns);

// Wakes everybody who sleeps on `word`, in any process.
void FutexWake(std::atomic<uint32_t>* word);

}  // namespace tandem
