#include "daemon/supervisor/engine_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

extern char** environ;

namespace tandem::daemon {
namespace {

constexpr size_t kMaxOutput = 4096;

bool SameFile(const char* path, int fd) {
  struct stat there {
  }, here{};
  return ::stat(path, &there) == 0 && ::fstat(fd, &here) == 0 && there.st_dev == here.st_dev &&
         there.st_ino == here.st_ino;
}

// The first kMaxOutput bytes that a child writes to a pipe until its end or the deadline.
std::string ReadAll(int pipe, std::chrono::steady_clock::time_point until) {
  std::string text;
  std::array<char, 512> buffer{};
  while (text.size() < kMaxOutput) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd ready{pipe, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) break;
    const ssize_t length = ::read(pipe, buffer.data(), buffer.size());
    if (length <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(length));
  }
  return text;
}

std::string VersionOf(const std::string& build) { return build.substr(0, build.find('+')); }

}  // namespace

Result<EngineProgram> EngineProgram::Open(const std::string& path) {
  EngineProgram program;
  program.path_ = path;
  program.file_.Reset(::open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!program.file_.valid()) return SystemError("open the engine program " + path, errno);
  if (::access(path.c_str(), X_OK) != 0)
    return PermissionDenied("the engine program " + path + " cannot be executed");
  return program;
}

std::string EngineProgram::Executable() const {
  // By this process's number: the child closes its own copy before it executes anything.
  std::string held = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.get());
  return SameFile(held.c_str(), file_.get()) ? held : path_;
}

Result<std::string> EngineProgram::Build(std::chrono::milliseconds deadline) const {
  const auto until = std::chrono::steady_clock::now() + deadline;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  UniqueFd reader(ends[0]), writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), 1);
  std::string name = path_, flag = "--version";
  char* argv[] = {name.data(), flag.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, Executable().c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("start " + path_, error);
  writer.Reset();
  const std::string text = ReadAll(reader.get(), until);
  ::kill(pid, SIGKILL);  // it has ended, or has had its time
  ::waitpid(pid, nullptr, 0);
  // "tandem-engine 0.1.0+1a2b3c4d5e6f"
  const size_t space = text.find(' '), end = text.find('\n');
  if (space == std::string::npos || end == std::string::npos || space + 1 >= end)
    return Unavailable("the engine program " + path_ + " does not tell its version");
  return text.substr(space + 1, end - space - 1);
}

Status CheckEngineBuild(const std::string& engine, const std::string& own) {
  if (VersionOf(engine) == VersionOf(own)) return Status::Ok();
  return FailedPrecondition("it is of version " + engine + ", tandemd of " + own +
                            ": both must come from one installation");
}

}  // namespace tandem::daemon
