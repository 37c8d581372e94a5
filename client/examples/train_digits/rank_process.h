// File: rank_process.h
//
// One worker as the launcher sees it: a child process and the line to it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "client/examples/train_digits/channel.h"
#include "client/examples/train_digits/options.h"
#include "tandem/status.h"

namespace tandem::digits {

class RankProcess {
 public:
  // Starts this program again as the worker of `rank`.
  static Result<std::unique_ptr<RankProcess>> Start(const Options& options, int rank, int resume_epoch);
  // Ends and reaps the child if it still runs.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  LineReader& lines() { return lines_; }
  bool Tell(const nlohmann::json& object) { return WriteLine(to_worker_.get(), object); }
  void Kill();
  // Waits for the child's end: its exit code, or 128 + the signal.
  int Reap();

 private:
  RankProcess(int rank, pid_t pid, UniqueFd to_worker, UniqueFd from_worker)
      : rank_(rank), pid_(pid), to_worker_(std::move(to_worker)), lines_(std::move(from_worker)) {}

  int rank_;
  pid_t pid_;
  UniqueFd to_worker_;
  LineReader lines_;
};

}  // namespace tandem::digits
