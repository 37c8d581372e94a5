#include "tests/conformance/rank_group.h"

#include <algorithm>
#include <chrono>

#include "client/ranks/job_key.h"

namespace tandem::conformance {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kStartMs = 120000, kEndMs = 120000;
constexpr int kGraceMs = 3000;  // for ranks that are asked to quit

std::vector<std::string> Arguments(const Options& options, int world, int rank) {
  std::vector<std::string> arguments = {"tandem-conformance",
                                        "--worker",
                                        "--world=" + std::to_string(world),
                                        "--rank=" + std::to_string(rank),
                                        "--seed=" + std::to_string(options.seed),
                                        "--deadline=" + std::to_string(options.deadline),
                                        "--runtime-dir=" + options.runtime_dir,
                                        "--first-gpu=" + std::to_string(options.first_gpu),
                                        "--job-key=" + options.job_key,
                                        "--own-bytes=" + std::to_string(options.own_bytes),
                                        "--symmetric-bytes=" + std::to_string(options.symmetric_bytes)};
  if (!options.placement.empty()) arguments.push_back("--placement=" + options.placement);
  if (options.families) arguments.emplace_back("--families");
  if (!options.captures) arguments.push_back("--no-captures");
  if (options.renew_every > 0) arguments.push_back("--renew-every=" + std::to_string(options.renew_every));
  return arguments;
}

// The first failure, by rank.
Status FirstFailure(const std::vector<Result<json>>& replies) {
  for (size_t rank = 0; rank < replies.size(); ++rank) {
    Status status = replies[rank].status();
    if (status.ok() && (*replies[rank])["status"] == "failed") {
      status = Internal((*replies[rank])["message"].get<std::string>());
    }
    if (!status.ok()) return status.WithContext("rank " + std::to_string(rank));
  }
  return Status::Ok();
}

}  // namespace

Status RankGroup::Start(int world, size_t own_bytes, size_t symmetric_bytes) {
  rank_options_ = options_;
  rank_options_.own_bytes = own_bytes;
  rank_options_.symmetric_bytes = symmetric_bytes;
  TANDEM_ASSIGN_OR_RETURN(rank_options_.job_key, RandomJobKey());
  world_ = world;
  return StartRanks();
}

Status RankGroup::StartRanks() {
  if (options_.runtime_dir.empty()) {
    if (daemon_ == nullptr) {
      const int gpus = options_.first_gpu + *std::max_element(options_.worlds.begin(), options_.worlds.end());
      TANDEM_ASSIGN_OR_RETURN(daemon_, DaemonProcess::Start(options_, gpus));
    }
    rank_options_.runtime_dir = daemon_->runtime_dir();
  }
  for (int rank = 0; rank < world_; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto process,
                            WorkerProcess::Start("/proc/self/exe", Arguments(rank_options_, world_, rank)));
    ranks_.push_back(std::move(process));
  }
  return FirstFailure(HearAll(kStartMs));
}

Status RankGroup::Restart() {
  Stop(false);
  if (daemon_ != nullptr && !daemon_->Running()) daemon_.reset();
  Status status = StartRanks();
  if (status.ok() || daemon_ == nullptr) return status;
  Stop(true);
  return StartRanks();
}

std::vector<Result<json>> RankGroup::Ask(const json& line, int timeout_ms, const std::string& plant) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    json own = line;
    if (!plant.empty() && rank + 1 == ranks_.size()) own["plant"] = plant;
    (void)ranks_[rank]->Tell(own);  // one that has ended is heard of below
  }
  return HearAll(timeout_ms);
}

std::vector<Result<json>> RankGroup::HearAll(int timeout_ms) {
  auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::vector<Result<json>> replies;
  for (auto& rank : ranks_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    replies.push_back(rank->Hear(static_cast<int>(std::max<int64_t>(left, 0))));
    if (!replies.back().ok() || (*replies.back())["status"] == "failed") {
      end = std::min(end, Clock::now() + std::chrono::seconds(options_.deadline + 2));
    }
  }
  return replies;
}

Status RankGroup::End() {
  Status status = FirstFailure(Ask({{"end", true}}, kEndMs));
  Stop(!status.ok());
  return status;
}

void RankGroup::Stop(bool with_daemon) {
  QuitWorkers(&ranks_, kGraceMs);
  if (with_daemon) daemon_.reset();
}

}  // namespace tandem::conformance
