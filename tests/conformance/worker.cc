#include "tests/conformance/worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "tests/conformance/rank.h"
#include "tests/conformance/stress.h"

extern char** environ;

namespace tandem::conformance {
namespace {

using nlohmann::json;

// Where the worker finds its ends of the pipes.
constexpr int kWorkerIn = 3, kWorkerOut = 4;

}  // namespace

Result<std::unique_ptr<Worker>> Worker::Start(const Options& options, int world, int rank) {
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
  std::vector<std::string> arguments = {"tandem-conformance",
                                        "--worker",
                                        "--world=" + std::to_string(world),
                                        "--rank=" + std::to_string(rank),
                                        "--seed=" + std::to_string(options.seed),
                                        "--runtime-dir=" + options.runtime_dir,
                                        "--job-key=" + options.job_key,
                                        "--own-bytes=" + std::to_string(options.own_bytes),
                                        "--symmetric-bytes=" + std::to_string(options.symmetric_bytes)};
  if (!options.captures) arguments.push_back("--no-captures");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("posix_spawn", error);
  return std::unique_ptr<Worker>(new Worker(pid, std::move(down_write), std::move(up_read)));
}

Worker::~Worker() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<json> Worker::Hear(int timeout_ms) {
  for (;;) {
    if (auto line = lines_.Next()) return std::move(*line);
    pollfd poll{lines_.fd(), POLLIN, 0};
    const int ready = ::poll(&poll, 1, timeout_ms);
    if (ready == 0) return DeadlineExceeded("said nothing for " + std::to_string(timeout_ms / 1000) + " s");
    if (ready < 0 && errno == EINTR) continue;
    if (lines_.Fill()) continue;
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return Unavailable(WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                           : "ended with " + std::to_string(WEXITSTATUS(status)));
  }
}

int RunWorker(const Options& options) {
  const UniqueFd out(kWorkerOut);
  digits::LineReader in{UniqueFd(kWorkerIn)};
  RankOptions own;
  own.runtime_dir = options.runtime_dir;
  own.job_key = options.job_key;
  own.world = options.worlds[0];
  own.rank = options.rank;
  own.seed = options.seed;
  own.captures = options.captures;
  own.own_bytes = options.own_bytes;
  own.symmetric_bytes = options.symmetric_bytes;
  const std::vector<Case> matrix = MakeMatrix(own.world, own.seed);
  Rank rank(own);
  Status started = rank.Start();
  digits::WriteLine(out.get(), {{"status", started.ok() ? "ok" : "failed"}, {"message", started.ToString()}});
  if (!started.ok()) return 1;
  for (;;) {
    auto line = in.Next();
    if (!line) {
      if (!in.Fill()) return 1;  // the launcher has gone
      continue;
    }
    json reply;
    if (line->contains("case")) {
      reply = rank.Run(matrix[(*line)["case"].get<size_t>()]);
    } else if (line->contains("stress")) {
      reply = RunStress(rank, (*line)["stress"].get<int>());
    } else {
      Status ended = rank.End();
      digits::WriteLine(out.get(), {{"status", ended.ok() ? "ok" : "failed"}, {"message", ended.ToString()}});
      return ended.ok() ? 0 : 1;
    }
    digits::WriteLine(out.get(), reply);
  }
}

}  // namespace tandem::conformance
