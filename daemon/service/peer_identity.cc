#include "daemon/service/peer_identity.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

// Debian 12's headers know neither.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tandem::daemon {

Result<uint64_t> ProcessStartTicks(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return NotFound("no process " + std::to_string(pid));
  // The command, in parentheses, may hold anything: fields are counted after the last one. Start time is the 22nd.
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return Internal("malformed /proc/<pid>/stat");
  std::istringstream rest(line.substr(end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return static_cast<uint64_t>(std::strtoull(field.c_str(), nullptr, 10));
}

Result<std::pair<PeerIdentity, UniqueFd>> IdentifyPeer(int socket, PidfdSource source) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SystemError("getsockopt(SO_PEERCRED)", errno);
  }
  if (credentials.pid <= 0) {
    return FailedPrecondition("the kernel names no process at the other end: the client lives in another pid namespace")
        .WithDetail({.reason = "PID_NAMESPACE", .who = {}, .field = {}});
  }
  PeerIdentity peer{credentials.uid, credentials.gid, credentials.pid};
  if (source == PidfdSource::kPreferSocket) {
    int fd = -1;
    length = sizeof(fd);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
      return std::make_pair(peer, UniqueFd(fd));
    }
    if (errno == ESRCH || errno == EINVAL) return Unavailable("the client has ended already");
  }
  Result<uint64_t> before = ProcessStartTicks(peer.pid);
  if (!before.ok()) return Unavailable("the client has ended already");
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!pidfd.valid()) {
    return FailedPrecondition("this kernel has neither SO_PEERPIDFD nor pidfd_open (5.3 and later): " +
                              SystemError("pidfd_open", errno).message())
        .WithDetail({.reason = "NO_PIDFD", .who = {}, .field = {}});
  }
  Result<uint64_t> after = ProcessStartTicks(peer.pid);
  if (!after.ok() || *before != *after) return Unavailable("the client ended while it attached");
  return std::make_pair(peer, std::move(pidfd));
}

}  // namespace tandem::daemon
