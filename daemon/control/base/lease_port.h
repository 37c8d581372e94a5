// File: lease_port.h
//
// The lease sockets as the control plane sees them: the identity of a peer, and the port by which descriptors
// are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/control/base/waiter.h"
#include "tandem/status.h"

namespace tandem::daemon {

inline constexpr size_t kTokenBytes = 16;  // of a session

// The process at the other end of a lease, by the kernel's account.
struct PeerIdentity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  int pid = 0;
  std::string cgroup = {};  // path in the hierarchy that accounts for memory; empty if not known
  Waiter::Clock::time_point started =
      Waiter::Clock::now();  // of the process; if not known, the time of the connection
  uint64_t start_ticks = 0;  // of the process, in clock ticks since boot; 0: not known
};

// Both functions return at once.
class LeasePort {
 public:
  virtual ~LeasePort() = default;
  // Sends descriptors to a session; RESOURCE_EXHAUSTED if it does not read and its backlog is full.
  virtual Status Send(uint64_t session_id, uint64_t transfer_id, const std::vector<SharedFd>& fds) = 0;
  // Closes the session's lease; the session has ended already. A `why` that is not OK is sent to the client
  // first.
  virtual void Close(uint64_t session_id, const Status& why) = 0;
};

}  // namespace tandem::daemon
