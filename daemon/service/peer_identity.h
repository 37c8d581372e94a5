// File: peer_identity.h
//
// The process at the other end of a Unix socket, and a pidfd of it: by SO_PEERPIDFD where the kernel has it
// (6.5), else by pidfd_open with a check that the pid was not reused meanwhile.
#pragma once

#include <string>
#include <utility>

#include "common/unique_fd.h"
#include "daemon/control/control.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class PidfdSource { kPreferSocket, kOpenOnly };

// Credentials, pidfd and cgroup of the process at the other end. The cgroup is empty if /proc does not have
// it. FAILED_PRECONDITION, with the reason, if the kernel names no process (another pid namespace) or has no
// pidfds.
Result<std::pair<PeerIdentity, UniqueFd>> IdentifyPeer(int socket,
                                                       PidfdSource source = PidfdSource::kPreferSocket);

// A pidfd of the process that was known by these. Not valid if it has ended.
UniqueFd OpenProcess(int pid, uint64_t start_ticks);

// The cgroup that a process is accounted by, from the text of /proc/<pid>/cgroup. A pod's or a Slurm job's
// path in any hierarchy of a version 1 controller comes first, memory's before others'. Then the path of
// version 1's memory controller, then the path of version 2. Empty if the text names none of these. Named
// hierarchies ("name=systemd") do not count: users may own parts of these. Control characters are spaces in it, and
// bytes that are no UTF-8 are question marks.
std::string AccountedCgroup(const std::string& proc_text);

// Whether the process behind `pidfd` goes on. A process that ends closes its sockets before its pidfd becomes
// readable; then the kernel has marked it as exiting already.
bool ProcessLives(int pid, const UniqueFd& pidfd);

// The start time of a process in clock ticks since boot, from /proc/<pid>/stat. NOT_FOUND if there is no such
// process.
Result<uint64_t> ProcessStartTicks(int pid);

}  // namespace tandem::daemon
