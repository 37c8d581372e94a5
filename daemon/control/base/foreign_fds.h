// File: foreign_fds.h
//
// Descriptors that clients have sent. close() lasts as long as whoever made such a one likes: a socket that
// lingers, a file of a file system whose server is the client itself. So none is closed on a thread that
// others wait for, nor under a lock.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Closes them on a thread that nobody waits for. Returns at once, never blocks. Thread-safe.
void CloseElsewhere(std::vector<UniqueFd> fds);

// How many of these closes have not ended.
size_t ClosesUnderWay();

// Shared by its holders; closed elsewhere once the last of them has let go.
SharedFd ShareForeign(UniqueFd fd);

// INVALID_ARGUMENT for what can never be a tensor's memory and could hold up whoever touches it: sockets, and
// files of user-space file systems. May itself take as long as the file's owner likes.
Status CheckForeignMemory(int fd);

// Owns descriptors, and closes them elsewhere. Move only.
class ForeignFds {
 public:
  ForeignFds() = default;
  ForeignFds(std::vector<UniqueFd> fds)
      : fds_(std::move(fds)) {}  // NOLINT(google-explicit-constructor): what they are from now on
  ForeignFds(ForeignFds&& other) noexcept : fds_(std::exchange(other.fds_, {})) {}
  ForeignFds& operator=(ForeignFds&& other) noexcept {
    if (this != &other) CloseElsewhere(std::exchange(fds_, std::exchange(other.fds_, {})));
    return *this;
  }
  ~ForeignFds() { CloseElsewhere(std::move(fds_)); }

  size_t size() const { return fds_.size(); }
  bool empty() const { return fds_.empty(); }
  UniqueFd& operator[](size_t index) { return fds_[index]; }
  const UniqueFd& operator[](size_t index) const { return fds_[index]; }
  // `count` places for descriptors.
  void Reserve(size_t count) { fds_.resize(count); }

 private:
  std::vector<UniqueFd> fds_;
};

}  // namespace tandem::daemon
