#include "client/tandemctl/tune_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace tandem::ctl {

using nlohmann::json;

namespace {
constexpr char kProgram[] = "tandem-tune-rank";

// A rank's process has ended, and the daemon may be well: UNAVAILABLE would be reported as a daemon out of
// reach.
Status RankFailure(const Status& status) {
  if (status.code() != Code::kUnavailable) return status;
  constexpr char kNotStarted[] = "ended with 127";  // the loader's status for a library that it does not find
  const bool not_started = status.message().find(kNotStarted) != std::string::npos;
  return Internal(std::string(kProgram) + " " + status.message() +
                  (not_started
                       ? ": it cannot be loaded, most likely because libtandem.so.0 is missing (see above)"
                       : ""));
}

constexpr int kGraceMs = 3000;  // for ranks to quit
}  // namespace

Result<std::string> FindTuneRank() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Internal("/proc/self/exe cannot be read");
  const auto folder = self.parent_path();
  for (const auto& candidate :
       {folder / "tandem-tune-rank", folder.parent_path() / "libexec" / "tandem" / "tandem-tune-rank"}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return FailedPrecondition("there is no tandem-tune-rank beside " + self.string() + " or in " +
                            (folder.parent_path() / "libexec" / "tandem").string() +
                            ": install Tandem's client component");
}

Result<std::unique_ptr<TuneRanks>> TuneRanks::Start(const std::string& runtime_dir,
                                                    const std::vector<std::string>& gpus,
                                                    double deadline_seconds) {
  TANDEM_ASSIGN_OR_RETURN(const std::string program, FindTuneRank());
  ::signal(SIGPIPE, SIG_IGN);  // a write to a rank that has ended fails instead
  const int deadline_ms = static_cast<int>(deadline_seconds * 1000);
  std::vector<std::unique_ptr<WorkerProcess>> ranks;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(
        auto worker, WorkerProcess::Start(
                         program, {"tandem-tune-rank", "--runtime-dir=" + runtime_dir, "--gpu=" + gpus[rank],
                                   "--world=" + std::to_string(gpus.size()), "--rank=" + std::to_string(rank),
                                   "--deadline-ms=" + std::to_string(deadline_ms)}));
    ranks.push_back(std::move(worker));
  }
  // A step of a rank is a few calls, each with the deadline.
  return std::unique_ptr<TuneRanks>(new TuneRanks(std::move(ranks), 3 * deadline_ms + 5000));
}

TuneRanks::~TuneRanks() { QuitWorkers(&ranks_, kGraceMs); }

Result<std::vector<json>> TuneRanks::Ask(const json& line) {
  for (const auto& rank : ranks_) (void)rank->Tell(line);  // who has gone is found below
  std::vector<json> answers;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Result<json> answer = ranks_[rank]->Hear(timeout_ms_);
    if (!answer.ok()) return RankFailure(answer.status()).WithContext("rank " + std::to_string(rank));
    if (!answer->is_object()) return Internal("rank " + std::to_string(rank) + " answers with no object");
    answers.push_back(*std::move(answer));
  }
  return answers;
}

Result<std::vector<json>> TuneRanks::MustAsk(const json& line) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<json> answers, Ask(line));
  TANDEM_RETURN_IF_ERROR(RefusalIn(answers));
  return answers;
}

std::vector<int> TuneRanks::Pids() const {
  std::vector<int> pids;
  for (const auto& rank : ranks_) pids.push_back(rank->pid());
  return pids;
}

Status RefusalIn(const std::vector<json>& answers) {
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    const json& answer = answers[rank];
    if (answer.value("ok", false)) continue;
    StatusDetail detail;
    detail.reason = answer.value("reason", "");
    return Status(static_cast<Code>(answer.value("code", static_cast<int>(Code::kInternal))),
                  answer.value("message", ""), std::move(detail))
        .WithContext("rank " + std::to_string(rank));
  }
  return Status::Ok();
}

}  // namespace tandem::ctl
