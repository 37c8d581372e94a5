#include "daemon/supervisor/engine_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

extern char** environ;

namespace tandem::daemon {
namespace {

constexpr int kSocketFd = 3;
constexpr std::chrono::milliseconds kKillTurn{1000};

std::string ExitText(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

// posix_spawn's two objects, destroyed together.
struct SpawnPlan {
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// This process's environment with `changes` over it, as posix_spawn takes it; points into both.
std::vector<char*> MergedEnvironment(std::vector<std::string>& changes) {
  std::vector<char*> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    const size_t name = equals == nullptr ? std::strlen(*entry) : static_cast<size_t>(equals - *entry) + 1;
    bool changed = false;
    for (const std::string& change : changes) changed |= change.compare(0, name, *entry, name) == 0;
    if (!changed) merged.push_back(*entry);
  }
  for (std::string& change : changes) merged.push_back(change.data());
  merged.push_back(nullptr);
  return merged;
}

}  // namespace

Result<EngineProcess> EngineProcess::Spawn(const std::string& path, int socket,
                                           const std::vector<std::string>& environment,
                                           const std::string& name) {
  // The socket must not be the target of an earlier action (stdin is opened onto 0).
  UniqueFd high(::fcntl(socket, F_DUPFD_CLOEXEC, 10));
  if (!high.valid()) return SystemError("fcntl(F_DUPFD_CLOEXEC)", errno);

  SpawnPlan plan;
  posix_spawn_file_actions_addopen(&plan.actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&plan.actions, high.get(), kSocketFd);
  posix_spawn_file_actions_addclosefrom_np(&plan.actions, kSocketFd + 1);

  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&plan.attributes, &none);
  posix_spawnattr_setsigdefault(&plan.attributes, &all);
  posix_spawnattr_setpgroup(&plan.attributes, 0);
  posix_spawnattr_setflags(&plan.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::string program = name.empty() ? path : name, flag = "--fd", value = std::to_string(kSocketFd);
  char* argv[] = {program.data(), flag.data(), value.data(), nullptr};
  std::vector<std::string> changes = environment;
  std::vector<char*> merged = MergedEnvironment(changes);
  pid_t pid = -1;
  if (int error = ::posix_spawn(&pid, path.c_str(), &plan.actions, &plan.attributes, argv, merged.data());
      error != 0) {
    return SystemError("start " + program, error);
  }
  EngineProcess process;
  process.pid_ = pid;
  // The child is not reaped yet, so the pid is its own.
  process.pidfd_.Reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.pidfd_.valid()) return SystemError("pidfd_open", errno);
  return process;
}

EngineProcess EngineProcess::Adopt(pid_t pid, UniqueFd pidfd) {
  EngineProcess process;
  process.pid_ = pid;
  process.pidfd_ = std::move(pidfd);
  process.is_child_ = false;
  return process;
}

void EngineProcess::Abandon() {
  pid_ = -1;
  pidfd_.Reset();
}

EngineProcess::EngineProcess(EngineProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), is_child_(other.is_child_) {}

EngineProcess& EngineProcess::operator=(EngineProcess&& other) noexcept {
  if (this != &other) {
    if (running()) Kill();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    is_child_ = other.is_child_;
  }
  return *this;
}

EngineProcess::~EngineProcess() {
  if (running()) Kill();
}

std::optional<std::string> EngineProcess::WaitExit(std::chrono::milliseconds timeout) {
  if (!running()) return "exit 0";
  auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (!is_child_) {
      pollfd ended{pidfd_.get(), POLLIN, 0};
      if (::poll(&ended, 1, static_cast<int>(timeout.count())) <= 0) return std::nullopt;
      Abandon();
      return "unknown (an earlier tandemd had started it)";
    }
    int status = 0;
    pid_t reaped = ::waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_ || (reaped < 0 && errno == ECHILD)) {
      pid_ = -1;
      pidfd_.Reset();
      return reaped < 0 ? "unknown (reaped elsewhere)" : ExitText(status);
    }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd wait{pidfd_.get(), POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(left.count()));
  }
}

std::string EngineProcess::Kill(const std::function<void()>& waiting) {
  // By the descriptor: the pid of a process that others reap may be somebody else's by now.
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  while (true) {
    if (auto text = WaitExit(kKillTurn)) return *text;
    if (waiting) waiting();
  }
}

}  // namespace tandem::daemon
