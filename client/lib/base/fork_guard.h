// File: fork_guard.h
//
// The state after a fork. The child shares nothing with the daemon: its handles answer
// FAILED_PRECONDITION, its copies of the lease sockets are closed in the child's atfork handler, and no
// destructor of gRPC runs there. Nor can it connect, since gRPC does not work in a child of a process that
// has used it. Locks that another thread held at the fork stay locked in the child: what runs there,
// destructors above all, takes none.
//
// Thread-safe. `vfork`, `posix_spawn` and `_Fork` call no handlers: their children must exec.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "tandem/status.h"

namespace tandem::client {

// Counts the forks between the first process and this one.
uint64_t ForkCount();

// FAILED_PRECONDITION, reason FORKED: `what`, and what to do instead.
Status Forked(const std::string& what);

// Exists while a session is being attached. A child that is forked meanwhile, or later if it was kept, cannot
// connect, and neither can its own children.
class ConnectAttempt {
 public:
  ConnectAttempt();
  ~ConnectAttempt();
  ConnectAttempt(const ConnectAttempt&) = delete;
  ConnectAttempt& operator=(const ConnectAttempt&) = delete;

  // FAILED_PRECONDITION in such a child.
  Status Check() const;
  // It has succeeded: this process uses gRPC from now on.
  void Keep() { kept_ = true; }

 private:
  bool kept_ = false;
};

// The descriptor that a forked child must close. Lives as long as its owner in the parent.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  void SetFd(int fd) { fd_.store(fd); }
  // True in a child forked after this object was made.
  bool InChild() const { return born_ != ForkCount(); }
  // FAILED_PRECONDITION in such a child.
  Status Check() const {
    return InChild() ? Forked("this handle was made before a fork, in the parent") : Status::Ok();
  }

 private:
  friend struct ForkRegistry;
  const uint64_t born_;
  std::atomic<int> fd_{-1};
  ForkGuard* next_ = nullptr;
  ForkGuard* previous_ = nullptr;
};

}  // namespace tandem::client
