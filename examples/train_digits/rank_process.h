// File: rank_process.h
//
// One worker as the launcher sees it: a child process, the line to it, and its rank.
#pragma once

#include <memory>

#include "client/ranks/worker_process.h"
#include "examples/train_digits/options.h"
#include "tandem/status.h"

namespace tandem::digits {

class RankProcess {
 public:
  // Starts this program again as the worker of `rank`; it ends with this object.
  static Result<std::unique_ptr<RankProcess>> Start(const Options& options, int rank, int resume_epoch);

  int rank() const { return rank_; }
  LineReader& lines() { return worker_->lines(); }
  bool Tell(const nlohmann::json& object) { return worker_->Tell(object); }
  void Kill() { worker_->Kill(); }
  // Waits for the child's end: its exit code, or 128 + the signal.
  int Reap() { return worker_->Reap(); }

 private:
  RankProcess(int rank, std::unique_ptr<WorkerProcess> worker) : rank_(rank), worker_(std::move(worker)) {}

  int rank_;
  std::unique_ptr<WorkerProcess> worker_;
};

}  // namespace tandem::digits
