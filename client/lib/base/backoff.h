// File: backoff.h
//
// Polling a word in shared memory that nobody wakes: eagerly at first, then with growing sleeps.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace tandem::client {

class PollBackoff {
 public:
  // Yields for a while, then sleeps 10 us, growing to 200 us.
  void Pause() {
    if (rounds_ < kYields) {
      ++rounds_;
      ::sched_yield();
      return;
    }
    timespec time{0, sleep_ns_};
    ::nanosleep(&time, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, 200'000L);
  }

 private:
  static constexpr int kYields = 64;
  int rounds_ = 0;
  long sleep_ns_ = 10'000;
};

}  // namespace tandem::client
