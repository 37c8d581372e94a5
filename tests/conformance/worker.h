// File: worker.h
//
// A rank's process and the launcher's end of it. The launcher says which case to run, so all ranks are at the same one
// and whoever is late is known.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "client/examples/train_digits/channel.h"
#include "tandem/status.h"
#include "tests/conformance/options.h"

namespace tandem::conformance {

class Worker {
 public:
  // Starts this program again as `rank` of `world`.
  static Result<std::unique_ptr<Worker>> Start(const Options& options, int world, int rank);
  // Ends and reaps the process.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  bool Tell(const nlohmann::json& line) { return digits::WriteLine(to_worker_.get(), line); }
  // The next line; DEADLINE_EXCEEDED after `timeout_ms`, UNAVAILABLE when the process has ended, with its exit.
  Result<nlohmann::json> Hear(int timeout_ms);

 private:
  Worker(pid_t pid, UniqueFd to_worker, UniqueFd from_worker)
      : pid_(pid), to_worker_(std::move(to_worker)), lines_(std::move(from_worker)) {}

  pid_t pid_;
  UniqueFd to_worker_;
  digits::LineReader lines_;
};

// The worker's side: serves the launcher on descriptors 3 and 4 until it says to end. The program's exit code.
int RunWorker(const Options& options);

}  // namespace tandem::conformance
