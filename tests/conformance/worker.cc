#include "tests/conformance/worker.h"

#include <unistd.h>

#include "client/ranks/worker_process.h"
#include "tests/conformance/rank.h"
#include "tests/conformance/stress.h"

namespace tandem::conformance {

using nlohmann::json;

namespace {

// Faults that a run plants into itself to show what becomes of them (Options::plant).
void Fall(const std::string& plant) {
  if (plant == "exit") ::_exit(7);
  while (plant == "hang") ::pause();
}

}  // namespace

int RunWorker(const Options& options) {
  const UniqueFd out(kWorkerOut);
  LineReader in{UniqueFd(kWorkerIn)};
  RankOptions own;
  own.runtime_dir = options.runtime_dir;
  own.job_key = options.job_key;
  own.world = options.worlds[0];
  own.rank = options.rank;
  own.gpu = options.first_gpu + options.rank;
  own.seed = options.seed;
  own.captures = options.captures;
  own.renew_every = options.renew_every;
  own.placement = options.placement;
  own.families = options.families;
  own.own_bytes = options.own_bytes;
  own.symmetric_bytes = options.symmetric_bytes;
  own.deadline = Milliseconds(options.deadline * 1000);
  const std::vector<Case> matrix = MakeMatrix(own.world, own.seed);
  Rank rank(own);
  Status started = rank.Start();
  WriteLine(out.get(), {{"status", started.ok() ? "ok" : "failed"}, {"message", started.ToString()}});
  if (!started.ok()) return 1;
  for (;;) {
    auto line = in.Next();
    if (!line) {
      if (!in.Fill()) return 1;  // the launcher has gone
      continue;
    }
    if (line->contains("quit")) return 1;  // whatever state the group is in
    json reply;
    if (line->contains("case")) {
      const std::string plant = line->value("plant", "");
      Fall(plant);
      const auto index = (*line)["case"].get<size_t>();
      reply = rank.Run(matrix[index], index, plant == "wrong");
    } else if (line->contains("stress")) {
      reply = RunStress(rank, (*line)["stress"].get<int>());
    } else {
      Status ended = rank.End();
      WriteLine(out.get(), {{"status", ended.ok() ? "ok" : "failed"}, {"message", ended.ToString()}});
      return ended.ok() ? 0 : 1;
    }
    WriteLine(out.get(), reply);
  }
}

}  // namespace tandem::conformance
