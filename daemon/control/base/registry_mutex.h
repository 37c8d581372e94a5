// File: registry_mutex.h
//
// The one mutex of the control plane, as the annotations know it. Records lie in many places and know no
// registry, so the analysis treats the mutex of the process's one Registry as one global capability,
// `registry_mutex`.
#pragma once

#include <mutex>

#include "common/thread_annotations.h"

namespace tandem::daemon {

struct Registry;

// Never held itself: RegistryLock holds Registry's mutex in its stead.
class TANDEM_CAPABILITY("registry mutex") RegistryCapability {};
inline RegistryCapability registry_mutex;

// Holds the registry's mutex from its construction to its destruction, except between Unlock and Lock.
class TANDEM_SCOPED_CAPABILITY RegistryLock {
 public:
  explicit RegistryLock(Registry& registry) TANDEM_ACQUIRE(registry_mutex);
  ~RegistryLock() TANDEM_RELEASE();
  RegistryLock(const RegistryLock&) = delete;
  RegistryLock& operator=(const RegistryLock&) = delete;

  void Unlock() TANDEM_RELEASE();
  void Lock() TANDEM_ACQUIRE() { lock_.lock(); }
  // The result of `work`, which runs with the mutex released; for functions that were given the lock.
  template <typename Work>
  auto Outside(Work work) TANDEM_REQUIRES(registry_mutex) TANDEM_NO_THREAD_SAFETY_ANALYSIS {
    Settle();
    lock_.unlock();
    auto result = work();
    lock_.lock();
    return result;
  }
  // For std::condition_variable, which releases the mutex, and holds it again when it returns.
  std::unique_lock<std::mutex>& fused() {
    Settle();
    return lock_;
  }

 private:
  // Changes are in the journal before anybody can see them, engines included (Registry::Settle).
  void Settle() TANDEM_NO_THREAD_SAFETY_ANALYSIS;

  Registry& registry_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tandem::daemon
