#include "client/lib/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>

namespace tandem::client {

namespace {

std::atomic<uint64_t> fork_count{0};
std::atomic<int> attempts{0};  // to connect, that are under way or have succeeded
std::atomic<bool> parent_connected{false};

}  // namespace

// The guards of this process in a list. The lock is held across the fork, so that the child sees the list
// whole.
struct ForkRegistry {
  std::mutex mutex;
  ForkGuard* head = nullptr;

  static ForkRegistry& Get() {
    static ForkRegistry* registry = [] {
      auto* made = new ForkRegistry;
      ::pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                       [] { Get().AfterForkInChild(); });
      return made;
    }();
    return *registry;
  }

  void AfterForkInChild() {
    fork_count.fetch_add(1);
    if (attempts.load() > 0) parent_connected.store(true);
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

Status Forked(const std::string& what) {
  return FailedPrecondition(what +
                            "; gRPC does not outlive a fork: start the child by exec or spawn, or fork "
                            "before the parent connects")
      .WithDetail({.reason = "FORKED", .who = {}, .field = {}});
}

ConnectAttempt::ConnectAttempt() {
  ForkRegistry::Get();  // its handlers look at the count
  attempts.fetch_add(1);
}

ConnectAttempt::~ConnectAttempt() {
  if (!kept_) attempts.fetch_sub(1);
}

Status ConnectAttempt::Check() const {
  return parent_connected.load() ? Forked("this process was forked by one that had connected") : Status::Ok();
}

uint64_t ForkCount() { return fork_count.load(std::memory_order_relaxed); }

ForkGuard::ForkGuard() : born_((ForkRegistry::Get(), ForkCount())) { ForkRegistry::Get().Add(this); }
ForkGuard::~ForkGuard() { ForkRegistry::Get().Remove(this); }

}  // namespace tandem::client
