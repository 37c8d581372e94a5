#include "examples/train_digits/rank_process.h"

#include <string>
#include <utility>
#include <vector>

namespace tandem::digits {
namespace {

std::vector<std::string> Arguments(const Options& options, int rank, int resume_epoch) {
  return {"tandem-train-digits",
          "--worker",
          "--rank=" + std::to_string(rank),
          "--runtime-dir=" + options.runtime_dir,
          "--data=" + options.data,
          "--checkpoints=" + options.checkpoint_dir,
          "--world=" + std::to_string(options.world_size),
          "--epochs=" + std::to_string(options.epochs),
          "--seed=" + std::to_string(options.seed),
          "--kill-rank=" + std::to_string(options.kill_rank),
          "--at-epoch=" + std::to_string(options.at_epoch),
          "--job-key=" + options.job_key,
          "--resume-epoch=" + std::to_string(resume_epoch)};
}

}  // namespace

Result<std::unique_ptr<RankProcess>> RankProcess::Start(const Options& options, int rank, int resume_epoch) {
  std::vector<std::string> arguments = Arguments(options, rank, resume_epoch);
  if (!options.backend.empty()) arguments.push_back("--backend=" + options.backend);
  TANDEM_ASSIGN_OR_RETURN(auto worker, WorkerProcess::Start("/proc/self/exe", std::move(arguments)));
  return std::unique_ptr<RankProcess>(new RankProcess(rank, std::move(worker)));
}

}  // namespace tandem::digits
