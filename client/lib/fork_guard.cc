#include "client/lib/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>

namespace tandem::client {

std::atomic<uint64_t> fork_count{0};

// The guards of this process in a list. The lock is held across the fork, so that the child sees the list whole.
struct ForkRegistry {
  std::mutex mutex;
  ForkGuard* head = nullptr;

  static ForkRegistry& Get() {
    static ForkRegistry* registry = [] {
      auto* made = new ForkRegistry;
      ::pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); }, [] { Get().AfterForkInChild(); });
      return made;
    }();
    return *registry;
  }

  void AfterForkInChild() {
    fork_count.fetch_add(1);
    for (ForkGuard* guard = head; guard != nullptr; guard = guard->next_) {
      int fd = guard->fd_.exchange(-1);
      if (fd >= 0) ::close(fd);
    }
    // The parent's guards are not this process's: their owners' copies here end without touching the list.
    head = nullptr;
    mutex.unlock();
  }

  void Add(ForkGuard* guard) {
    std::lock_guard lock(mutex);
    guard->next_ = head;
    if (head != nullptr) head->previous_ = guard;
    head = guard;
  }

  void Remove(ForkGuard* guard) {
    std::lock_guard lock(mutex);
    if (guard->InChild()) return;
    if (guard->previous_ != nullptr) guard->previous_->next_ = guard->next_;
    if (guard->next_ != nullptr) guard->next_->previous_ = guard->previous_;
    if (head == guard) head = guard->next_;
  }
};

uint64_t ForkCount() { return fork_count.load(std::memory_order_relaxed); }

ForkGuard::ForkGuard() : born_((ForkRegistry::Get(), ForkCount())) { ForkRegistry::Get().Add(this); }
ForkGuard::~ForkGuard() { ForkRegistry::Get().Remove(this); }

}  // namespace tandem::client
