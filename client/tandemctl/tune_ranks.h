// File: tune_ranks.h
//
// The rank processes of a measurement (tandem-tune-rank), spoken to all at once: every line goes to all
// ranks, and all answers are waited for.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/ranks/worker_process.h"
#include "tandem/status.h"

namespace tandem::ctl {

// The tandem-tune-rank beside tandemctl, or in ../libexec/tandem; FAILED_PRECONDITION names what to install.
Result<std::string> FindTuneRank();

class TuneRanks {
 public:
  // One process for each of `gpus`, in rank order.
  static Result<std::unique_ptr<TuneRanks>> Start(const std::string& runtime_dir,
                                                  const std::vector<std::string>& gpus,
                                                  double deadline_seconds);

  // Lets them end by themselves (QuitWorkers).
  ~TuneRanks();
  TuneRanks(const TuneRanks&) = delete;
  TuneRanks& operator=(const TuneRanks&) = delete;

  // The ranks' answers. An error names the rank that has ended or does not answer; no answer of that rank
  // will come. A refusal is an answer ("ok" is false).
  Result<std::vector<nlohmann::json>> Ask(const nlohmann::json& line);
  // As Ask; the first refusal is the error.
  Result<std::vector<nlohmann::json>> MustAsk(const nlohmann::json& line);
  std::vector<int> Pids() const;

 private:
  TuneRanks(std::vector<std::unique_ptr<WorkerProcess>> ranks, int timeout_ms)
      : ranks_(std::move(ranks)), timeout_ms_(timeout_ms) {}

  std::vector<std::unique_ptr<WorkerProcess>> ranks_;
  int timeout_ms_;
};

// The first answer that refuses, as a status "rank 1: …"; OK if none does.
Status RefusalIn(const std::vector<nlohmann::json>& answers);

}  // namespace tandem::ctl
