// File: peer_identity.h
//
// Who is at the other end of a Unix socket, and a pidfd of that process: by SO_PEERPIDFD where the kernel has it (6.5),
// else by pidfd_open with a check that the pid was not reused meanwhile.
#pragma once

#include <utility>

#include "common/unique_fd.h"
#include "daemon/control/control.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class PidfdSource { kPreferSocket, kOpenOnly };

// FAILED_PRECONDITION, with the reason, if the kernel names no process (another pid namespace) or has no pidfds.
Result<std::pair<PeerIdentity, UniqueFd>> IdentifyPeer(int socket, PidfdSource source = PidfdSource::kPreferSocket);

// The start time of a process in clock ticks since boot, from /proc/<pid>/stat. NOT_FOUND if there is no such process.
Result<uint64_t> ProcessStartTicks(int pid);

}  // namespace tandem::daemon
