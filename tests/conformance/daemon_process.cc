#include "tests/conformance/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tandem/client.h"

extern char** environ;

namespace tandem::conformance {
namespace {

constexpr std::chrono::seconds kStart{60}, kEnd{30};

std::filesystem::path OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

Result<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options, int gpus) {
  std::string folder = (std::filesystem::temp_directory_path() / "tandem-conformance.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return SystemError("mkdtemp", errno);
  std::unique_ptr<DaemonProcess> daemon(
      new DaemonProcess(folder, options.daemon_log.empty() ? folder + "/tandemd.log" : options.daemon_log));
  const std::filesystem::path bin =
      options.bin_dir.empty() ? OwnFolder() : std::filesystem::path(options.bin_dir);
  const std::string program = (bin / "tandemd").string();
  std::vector<std::string> arguments = {program,           "--runtime-dir", folder,         "--state-dir",
                                        folder + "/state", "--backend",     options.backend};
  if (options.backend == "host") {
    arguments.insert(arguments.end(), {"--emulated-gpus", std::to_string(gpus)});
  }
  arguments.insert(arguments.end(), options.daemon_options.begin(), options.daemon_options.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, daemon->log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int error = ::posix_spawn(&daemon->pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("starting " + program, error);

  ConnectOptions connect;
  connect.runtime_dir = folder;
  connect.name = "conformance";
  const auto deadline = std::chrono::steady_clock::now() + kStart;
  for (;;) {
    Result<std::shared_ptr<Client>> client = Client::Connect(connect);
    // The lease's socket answers a moment before the other.
    const Status answer = client.ok() ? (*client)->Detach() : client.status();
    if (answer.ok()) return daemon;
    int status = 0;
    if (::waitpid(daemon->pid_, &status, WNOHANG) == daemon->pid_) {
      daemon->pid_ = -1;
      return Unavailable("tandemd ended at its start:\n" + daemon->LogTail());
    }
    if (std::chrono::steady_clock::now() > deadline) return answer.WithContext("tandemd does not answer");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool DaemonProcess::Running() {
  int status = 0;
  if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) pid_ = -1;
  return pid_ > 0;
}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    const auto deadline = std::chrono::steady_clock::now() + kEnd;
    while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) ::kill(pid_, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string DaemonProcess::LogTail() const {
  std::ifstream log(log_);
  std::deque<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    lines.push_back(line);
    if (lines.size() > 30) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "# " + line + "\n";
  return text;
}

}  // namespace tandem::conformance
