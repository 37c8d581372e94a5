#include "client/examples/train_digits/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

extern char** environ;

namespace tandem::digits {
namespace {

// Where the worker finds its ends of the pipes.
constexpr int kWorkerIn = 3;
constexpr int kWorkerOut = 4;

std::vector<std::string> Arguments(const Options& options, int rank, int resume_epoch) {
  return {"tandem-train-digits",
          "--worker",
          "--rank=" + std::to_string(rank),
          "--runtime-dir=" + options.runtime_dir,
          "--data=" + options.data,
          "--checkpoints=" + options.checkpoint_dir,
          "--world=" + std::to_string(options.world_size),
          "--epochs=" + std::to_string(options.epochs),
          "--seed=" + std::to_string(options.seed),
          "--kill-rank=" + std::to_string(options.kill_rank),
          "--at-epoch=" + std::to_string(options.at_epoch),
          "--job-key=" + options.job_key,
          "--resume-epoch=" + std::to_string(resume_epoch)};
}

}  // namespace

Result<std::unique_ptr<RankProcess>> RankProcess::Start(const Options& options, int rank, int resume_epoch) {
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
  std::vector<std::string> arguments = Arguments(options, rank, resume_epoch);
  if (!options.backend.empty()) arguments.push_back("--backend=" + options.backend);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("posix_spawn", error);
  return std::unique_ptr<RankProcess>(new RankProcess(rank, pid, std::move(down_write), std::move(up_read)));
}

RankProcess::~RankProcess() {
  if (pid_ <= 0) return;
  Kill();
  Reap();
}

void RankProcess::Kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

int RankProcess::Reap() {
  if (pid_ <= 0) return 0;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace tandem::digits
