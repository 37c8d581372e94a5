#include "daemon/admin/end_processes.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/unique_fd.h"

namespace tandem::daemon {
namespace {

using Clock = std::chrono::steady_clock;

struct Target {
  int pid;
  UniqueFd pidfd;
};

Status Signal(const Target& target, int signal) {
  if (::syscall(SYS_pidfd_send_signal, target.pidfd.get(), signal, nullptr, 0) == 0 || errno == ESRCH)
    return Status::Ok();
  return SystemError("signal process " + std::to_string(target.pid), errno);
}

// Drops those that end before `until`.
void AwaitEnds(std::vector<Target>& targets, Clock::time_point until) {
  while (!targets.empty()) {
    std::vector<pollfd> waits;
    waits.reserve(targets.size());
    for (const Target& target : targets) waits.push_back({target.pidfd.get(), POLLIN, 0});
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0 || ::poll(waits.data(), waits.size(), static_cast<int>(left)) == 0) return;
    std::vector<Target> rest;
    for (size_t i = 0; i < targets.size(); ++i) {
      if ((waits[i].revents & POLLIN) == 0) rest.push_back(std::move(targets[i]));
    }
    targets = std::move(rest);
  }
}

}  // namespace

Status EndProcesses(const std::vector<int>& pids, std::chrono::milliseconds grace) {
  std::vector<Target> targets;
  for (int pid : pids) {
    if (pid <= 1 || pid == ::getpid())
      return InvalidArgument("process " + std::to_string(pid) + " is not to be ended");
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd.valid()) {
      targets.push_back({pid, std::move(pidfd)});
    } else if (errno != ESRCH) {
      return SystemError("pidfd_open of process " + std::to_string(pid), errno);
    }
  }
  for (const Target& target : targets) TANDEM_RETURN_IF_ERROR(Signal(target, SIGTERM));
  AwaitEnds(targets, Clock::now() + grace);
  for (const Target& target : targets) TANDEM_RETURN_IF_ERROR(Signal(target, SIGKILL));
  AwaitEnds(targets, Clock::now() + std::chrono::seconds(10));
  if (targets.empty()) return Status::Ok();
  return DeadlineExceeded("process " + std::to_string(targets[0].pid) + " does not end by SIGKILL");
}

}  // namespace tandem::daemon
