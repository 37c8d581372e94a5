// File: word_wait.h
//
// How the host backend waits for a word: nobody wakes it, so it polls, first hot and then ever more slowly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem::host {

// True when `current` has reached `target` by cyclic comparison: 2^62 has reached every ordinary value.
constexpr bool Reached(uint64_t current, uint64_t target) {
  return static_cast<int64_t>(current - target) >= 0;
}

// The pauses of one polling loop: a few CPU pauses (SpinBudget says how many, by the thread's earlier waits),
// then yields until 20 µs have passed, then sleeps that grow with the time waited, to 50 µs. A wait that
// lasts over 50 ms may sleep for a thousandth of the time waited, at most 1 ms. So streams that wait for a
// late rank cost next to no CPU. One object a wait; one thread.
class Backoff {
 public:
  Backoff() = default;
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  ~Backoff();
  void Pause();

 private:
  int spins_ = 0;
  int most_spins_ = 0;  // known from the first pause on
  bool yielded_ = false;
  std::chrono::steady_clock::time_point start_;
};

// Polls until *word has reached `value`, with acquire order. False if `abandoned` was set first.
bool WaitUntilReached(const std::atomic<uint64_t>& word, uint64_t value, const std::atomic<bool>& abandoned);

// Lets this thread's short sleeps be short: without it the kernel rounds each up by 50 µs.
void UsePreciseSleeps();

// CLOCK_MONOTONIC in nanoseconds.
int64_t MonotonicNs();

}  // namespace tandem::host
