// File: engine_process.h
//
// `EngineProcess`: one child process that runs tandem-engine: started by posix_spawn (never by fork alone: a
// child must not inherit a failed cuInit), watched by its pidfd, and always reaped. Or a process that an
// earlier tandemd has started, which others reap. Owned by one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

class EngineProcess {
 public:
  // Starts `path --fd 3` with `socket` as descriptor 3, /dev/null as standard input, and this process's
  // standard output and error; no other descriptor is open. The process gets its own process group, so that a
  // terminal's Ctrl-C reaches tandemd only. `environment` ("NAME=value") goes over this process's own. The
  // process calls itself `name`, or else `path`. NOT_FOUND or PERMISSION_DENIED name the program.
  static Result<EngineProcess> Spawn(const std::string& path, int socket,
                                     const std::vector<std::string>& environment = {},
                                     const std::string& name = {});

  // A process that an earlier tandemd has started. Its exit status stays unknown.
  static EngineProcess Adopt(pid_t pid, UniqueFd pidfd);
  // Lets the process go on without this object.
  void Abandon();

  EngineProcess() = default;
  EngineProcess(EngineProcess&& other) noexcept;
  EngineProcess& operator=(EngineProcess&& other) noexcept;
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;
  // Kills and reaps a process that still runs.
  ~EngineProcess();

  pid_t pid() const { return pid_; }
  // Becomes readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  bool running() const { return pid_ > 0; }

  // Waits up to `timeout` for the end and reaps: "exit 3" or "signal 9"; nothing if it still runs.
  std::optional<std::string> WaitExit(std::chrono::milliseconds timeout);
  // SIGKILL, then reaps. The last resort. A process that the kernel holds, in a driver's call say, ends only
  // when it is let go: `waiting`, if there is one, is called about every second until then.
  std::string Kill(const std::function<void()>& waiting = {});

 private:
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool is_child_ = true;
};

}  // namespace tandem::daemon
