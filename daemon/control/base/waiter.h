// File: waiter.h
//
// `Waiter`: how long a caller is willing to wait, and whether it still is. Every blocking operation of the
// control plane takes one, so that a cancelled gRPC call stops waiting.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>

#include "common/thread_annotations.h"

namespace tandem::daemon {

struct Waiter {
  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
  // True once the caller has gone; polled about ten times a second. May be empty.
  std::function<bool()> cancelled;

  static Waiter For(std::chrono::milliseconds time) { return Waiter{Clock::now() + time, {}}; }

  bool Expired() const { return Clock::now() >= deadline; }
  bool Cancelled() const { return cancelled && cancelled(); }

  // Waits on `changed` until `ready` holds; false if the deadline passed or the caller went away first.
  // `lock` is a MutexLock or a RegistryLock, held by the caller; `ready` is called with it held, at least
  // once a second.
  template <typename Lock, typename Ready>
  bool Wait(Lock& lock, std::condition_variable& changed,
            Ready ready) const TANDEM_NO_THREAD_SAFETY_ANALYSIS {
    while (!ready()) {
      if (Expired() || Cancelled()) return false;
      const auto slice = cancelled ? std::chrono::milliseconds(100) : std::chrono::milliseconds(1000);
      changed.wait_until(lock.fused(), std::min(deadline, Clock::now() + slice));
    }
    return true;
  }
};

}  // namespace tandem::daemon
