// File: timed_lock.h
//
// A lock that can be waited for until a time, as std::timed_mutex is. That one waits by
// pthread_mutex_clocklock, which the thread sanitizer of GCC 12 does not know: it takes the unlock for that
// of a lock that nobody holds.
//
// Thread rule: thread-safe; who has locked it unlocks it.
#pragma once

#include <chrono>
#include <condition_variable>

#include "common/mutex.h"

namespace tandem::daemon {

// For std::unique_lock and std::lock_guard.
class TimedLock {
 public:
  void lock() {
    MutexLock own(mutex_);
    free_.wait(own.fused(), [this]() TANDEM_REQUIRES(mutex_) { return !held_; });
    held_ = true;
  }
  bool try_lock() {
    MutexLock own(mutex_);
    if (held_) return false;
    held_ = true;
    return true;
  }
  // False: it is still held at `deadline`.
  template <class Clock, class Duration>
  bool try_lock_until(const std::chrono::time_point<Clock, Duration>& deadline) {
    MutexLock own(mutex_);
    if (!free_.wait_until(own.fused(), deadline, [this]() TANDEM_REQUIRES(mutex_) { return !held_; }))
      return false;
    held_ = true;
    return true;
  }
  void unlock() {
    MutexLock own(mutex_);
    held_ = false;
    free_.notify_one();
  }

 private:
  Mutex mutex_;
  std::condition_variable free_;
  bool held_ TANDEM_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::daemon
