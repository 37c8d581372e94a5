#include "client/ranks/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

extern char** environ;

namespace tandem {

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const std::string& program,
                                                            std::vector<std::string> arguments) {
  int down[2], up[2];
  if (::pipe2(down, O_CLOEXEC) != 0) return SystemError("pipe2", errno);
  UniqueFd down_read(down[0]), down_write(down[1]);
  if (::pipe2(up, O_CLOEXEC) != 0) return SystemError("pipe2", errno);
  UniqueFd up_read(up[0]), up_write(up[1]);
  // The pipes' numbers may be those that they are to be moved to: move them out of the way first.
  UniqueFd child_in(::fcntl(down_read.get(), F_DUPFD_CLOEXEC, 10));
  UniqueFd child_out(::fcntl(up_write.get(), F_DUPFD_CLOEXEC, 10));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, child_in.get(), kWorkerIn);
  ::posix_spawn_file_actions_adddup2(&actions, child_out.get(), kWorkerOut);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("posix_spawn " + program, error);
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(pid, std::move(down_write), std::move(up_read)));
}

WorkerProcess::~WorkerProcess() {
  if (pid_ <= 0) return;
  Kill();
  Reap();
}

Result<nlohmann::json> WorkerProcess::Hear(int timeout_ms) {
  for (;;) {
    if (auto line = lines_.Next()) return std::move(*line);
    pollfd poll{lines_.fd(), POLLIN, 0};
    const int ready = ::poll(&poll, 1, timeout_ms);
    if (ready == 0) return DeadlineExceeded("sent nothing for " + std::to_string(timeout_ms / 1000) + " s");
    if (ready < 0 && errno == EINTR) continue;
    if (lines_.Fill()) continue;
    const int code = Reap();
    return Unavailable(code > 128 ? "was ended by signal " + std::to_string(code - 128)
                                  : "ended with " + std::to_string(code));
  }
}

void WorkerProcess::Kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int WorkerProcess::Reap() {
  if (pid_ <= 0) return 0;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void QuitWorkers(std::vector<std::unique_ptr<WorkerProcess>>* workers, int grace_ms) {
  using Clock = std::chrono::steady_clock;
  for (auto& worker : *workers)
    (void)worker->Tell({{"quit", true}});  // one that has ended is not waited for below
  const auto end = Clock::now() + std::chrono::milliseconds(grace_ms);
  for (auto& worker : *workers) {
    Status status;
    while (status.ok()) {  // until it has ended, or the time is up
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      status = worker->Hear(static_cast<int>(std::max<int64_t>(left, 0))).status();
    }
  }
  workers->clear();
}

}  // namespace tandem
