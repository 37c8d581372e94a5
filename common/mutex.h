// File: mutex.h
//
// `Mutex` and `MutexLock`: std::mutex and std::unique_lock, as far as they are used here, with the
// thread-safety annotations that the standard library's own do not carry.
//
// Thread rule: as of std::mutex and std::unique_lock.
#pragma once

#include <mutex>

#include "common/thread_annotations.h"

namespace tandem {

class TANDEM_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex fused_;
};

// Holds a mutex from its construction to its destruction, except between Unlock and Lock.
class TANDEM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TANDEM_ACQUIRE(mutex) : lock_(mutex.fused_) {}
  ~MutexLock() TANDEM_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() TANDEM_RELEASE() { lock_.unlock(); }
  void Lock() TANDEM_ACQUIRE() { lock_.lock(); }
  // For std::condition_variable, which holds the mutex again when it returns.
  std::unique_lock<std::mutex>& fused() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tandem
