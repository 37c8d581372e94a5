#include "daemon/service/peer_identity.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/process_identity.h"
#include "common/utf8.h"
#include "daemon/control/base/ledger.h"

// Debian 12's headers know neither.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace tandem::daemon {
namespace {

// The cgroup of the process behind `pidfd`. Read while it lives, so that it is not that of a reused pid.
std::string CgroupOf(int pid, const UniqueFd& pidfd) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  std::stringstream text;
  text << file.rdbuf();
  pollfd ended{pidfd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0 ? AccountedCgroup(text.str()) : std::string();
}

// Positions in StatFields of fields of /proc/<pid>/stat: the 3rd, the 9th and the 22nd.
constexpr size_t kState = 0, kFlags = 6, kStartTime = 19;

// The fields of /proc/<pid>/stat from the 3rd on. The command before them, in parentheses, may hold anything.
Result<std::vector<std::string>> StatFields(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return NotFound("no process " + std::to_string(pid));
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return Internal("malformed /proc/<pid>/stat");
  std::istringstream rest(line.substr(end + 1));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  if (fields.size() <= kStartTime) return Internal("malformed /proc/<pid>/stat");
  return fields;
}

// The time at which a process was started, at most one tick (10 ms) too late; now if it is not known.
Waiter::Clock::time_point StartOf(int pid) {
  const auto now = Waiter::Clock::now();
  const Result<uint64_t> ticks = ProcessStartTicks(pid);
  timespec since_boot{};
  const long ticks_a_second = ::sysconf(_SC_CLK_TCK);
  if (!ticks.ok() || ticks_a_second <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return now;
  const double age = static_cast<double>(since_boot.tv_sec) + 1e-9 * static_cast<double>(since_boot.tv_nsec) -
                     static_cast<double>(*ticks + 1) / static_cast<double>(ticks_a_second);
  return now - std::chrono::milliseconds(static_cast<int64_t>(1000 * std::max(age, 0.0)));
}

}  // namespace

Result<uint64_t> ProcessStartTicks(int pid) {
  Result<std::vector<std::string>> fields = StatFields(pid);
  if (!fields.ok()) return fields.status();
  return static_cast<uint64_t>(std::strtoull((*fields)[kStartTime].c_str(), nullptr, 10));
}

bool ProcessLives(int pid, const UniqueFd& pidfd) {
  constexpr uint64_t kExiting = 4;  // PF_EXITING
  const Result<std::vector<std::string>> fields = StatFields(pid);
  pollfd ended{pidfd.get(), POLLIN, 0};
  if (!fields.ok() || ::poll(&ended, 1, 0) != 0) return false;  // also if the pid is another process's by now
  const std::string& state = (*fields)[kState];
  return state != "Z" && state != "X" &&
         (std::strtoull((*fields)[kFlags].c_str(), nullptr, 10) & kExiting) == 0;
}

std::string AccountedCgroup(const std::string& proc_text) {
  // Slurm without limits of memory has its jobs in the freezer's hierarchy only.
  std::istringstream lines(proc_text);
  std::string memory, unified, job;
  for (std::string line; std::getline(lines, line);) {
    line = WithoutControlCharacters(line);  // whoever makes a cgroup chooses its name's bytes
    // hierarchy:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers(",");  // GCC 12 warns of "," + a temporary text at -O3
    controllers.append(line, first + 1, second - first - 1).append(",");
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      if (line.substr(0, first) == "0") unified = path;
      continue;
    }
    if (controllers.starts_with(",name=")) continue;
    const bool of_memory = controllers.find(",memory,") != std::string::npos;
    if (of_memory) memory = path;
    if (IsOfJob(path) && (of_memory || job.empty())) job = path;
  }
  if (!job.empty()) return job;
  return memory.empty() ? unified : memory;
}

Result<std::pair<PeerIdentity, UniqueFd>> IdentifyPeer(int socket, PidfdSource source) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SystemError("getsockopt(SO_PEERCRED)", errno);
  }
  if (credentials.pid <= 0) {
    return FailedPrecondition(
               "the kernel names no process at the other end: the client lives in another pid namespace")
        .WithDetail({.reason = "PID_NAMESPACE", .who = {}, .field = {}});
  }
  PeerIdentity peer{credentials.uid, credentials.gid, credentials.pid, {}, StartOf(credentials.pid)};
  if (source == PidfdSource::kPreferSocket) {
    int fd = -1;
    length = sizeof(fd);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
      UniqueFd pidfd(fd);
      peer.cgroup = CgroupOf(peer.pid, pidfd);
      peer.start_ticks = ProcessIdentity::Of(peer.pid).start_ticks;
      return std::make_pair(std::move(peer), std::move(pidfd));
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
  peer.cgroup = CgroupOf(peer.pid, pidfd);
  peer.start_ticks = *after;
  return std::make_pair(std::move(peer), std::move(pidfd));
}

UniqueFd OpenProcess(int pid, uint64_t start_ticks) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (ProcessIdentity{.pid = pid, .start_ticks = start_ticks}.Gone()) pidfd.Reset();
  return pidfd;
}

}  // namespace tandem::daemon
