// File: fork_guard.h
//
// What a fork leaves behind. The child shares nothing with the daemon: its handles answer FAILED_PRECONDITION, its copies
// of the lease sockets are closed in the child's atfork handler, and no destructor of gRPC runs there.
#pragma once

#include <atomic>
#include <cstdint>

#include "tandem/status.h"

namespace tandem::client {

// Counts the forks between the first process and this one.
uint64_t ForkCount();

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
    if (!InChild()) return Status::Ok();
    return FailedPrecondition("this handle was made before a fork: connect anew in the child");
  }

 private:
  friend struct ForkRegistry;
  const uint64_t born_;
  std::atomic<int> fd_{-1};
  ForkGuard* next_ = nullptr;
  ForkGuard* previous_ = nullptr;
};

}  // namespace tandem::client
