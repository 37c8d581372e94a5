// File: worker_process.h
//
// A rank's process as the program that started it sees it: a child, and a line to it that both write JSON
// objects to. The child finds its ends of the pipes at kWorkerIn and kWorkerOut.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/ranks/json_lines.h"
#include "tandem/status.h"

namespace tandem {

inline constexpr int kWorkerIn = 3, kWorkerOut = 4;

class WorkerProcess {
 public:
  // Starts `program` (a path) with `arguments`, the first of which is its name.
  static Result<std::unique_ptr<WorkerProcess>> Start(const std::string& program,
                                                      std::vector<std::string> arguments);
  // Kills and reaps the child if it has not been reaped.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // False if the child has gone.
  bool Tell(const nlohmann::json& line) { return WriteLine(to_worker_.get(), line); }
  // The next line; DEADLINE_EXCEEDED after `timeout_ms`, UNAVAILABLE when the process has ended, with its
  // exit.
  Result<nlohmann::json> Hear(int timeout_ms);
  LineReader& lines() { return lines_; }
  // 0 once it has been reaped.
  pid_t pid() const { return pid_ > 0 ? pid_ : 0; }
  void Kill();
  // Waits for the child's end: its exit code, or 128 + the signal.
  int Reap();

 private:
  WorkerProcess(pid_t pid, UniqueFd to_worker, UniqueFd from_worker)
      : pid_(pid), to_worker_(std::move(to_worker)), lines_(std::move(from_worker)) {}

  pid_t pid_;
  UniqueFd to_worker_;
  LineReader lines_;
};

// Tells all to quit ({"quit": true}) and waits `grace_ms` for their ends; whoever is left then is killed. A
// rank that ends by itself leaves its GPU in order; one that is killed in a kernel may take others along
// (MPS).
void QuitWorkers(std::vector<std::unique_ptr<WorkerProcess>>* workers, int grace_ms);

}  // namespace tandem
