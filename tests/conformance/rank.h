// File: rank.h
//
// One rank of a conformance run: a client of the daemon that runs the requested cases, checks its own
// outputs, and reports the results.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/device/rank_device.h"
#include "tandem/client.h"
#include "tests/conformance/compare.h"
#include "tests/conformance/family.h"
#include "tests/conformance/layout.h"

namespace tandem::conformance {

struct RankOptions {
  std::string runtime_dir, job_key;
  int world = 1, rank = 0, gpu = 0;  // the GPU's index
  uint64_t seed = 1;
  bool captures = true;
  int renew_every = 0;    // see Options
  std::string placement;  // the group's option; empty: not set
  bool in_client() const { return placement == "client"; }
  bool families = false;                      // cases run as launches of families
  size_t own_bytes = 0, symmetric_bytes = 0;  // of the arenas
  Milliseconds deadline{30000};               // for each step of a case
};

// Memory that cases lay their tensors out in, with its mirror.
struct Arena {
  std::shared_ptr<Memory> memory;
  std::unique_ptr<RankMirror> mirror;
};

class Rank {
 public:
  explicit Rank(const RankOptions& options) : options_(options) {}
  // Connects, joins, allocates.
  Status Start();
  // Runs the case `index` of the matrix, with values drawn by the seed and that number: {"status": "ok" |
  // "refused" | "failed", "message", "code", "first_wrong", "judged", "fatal", "algorithm", "deterministic",
  // "hashes": {slot: hex}}. `spoil` turns a byte of each output before it is judged.
  nlohmann::json Run(const Case& test, size_t index, bool spoil);
  Status End();

  Group& group() { return *group_; }
  RankDevice& device() { return *device_; }
  const Arena& own() const { return own_; }
  const Arena& symmetric() const { return symmetric_; }
  const RankOptions& options() const { return options_; }
  // Whether the group runs the operation by this algorithm where it fits; always by `auto`.
  bool OnOffer(Op op, Algorithm algorithm) const;
  // The way in which a plan computes its outputs.
  Execution ExecutionOf(const PlanInfo& info) const {
    const int more = info.max_rows > 0 ? kMoreRoundings : 0;
    return {info.roundings + more, info.algorithm, client_->backend() == "cuda"};
  }

 private:
  // How a launch is made; ranks of one launch may differ.
  enum class Way { kStream, kCaptured, kDirect };

  Status RunPlan(const Case& test, size_t index, bool spoil, nlohmann::json* report);
  // Compares all outputs with the reference; `report` gets the first wrong element and the hashes of
  // replicated outputs.
  Status JudgeOutputs(const Case& test, const AllInputs& inputs, const PlanInfo& info,
                      const std::vector<std::vector<std::byte>>& outputs, nlohmann::json* report) const;
  // Whether a refusal is right; OK if it is. Says in `report` that it was judged if it was a refusal at all.
  Status JudgeRefusal(const Case& test, const Status& refusal, nlohmann::json* report) const;
  // Whether `auto` has chosen what the planner's bounds say.
  Status JudgeChoice(const OpRequest& request, const PlanInfo& info) const;
  // Whether a prepared plan is what the case asked for.
  Status JudgePlan(const Case& test, const OpRequest& request, const PlanInfo& info) const;
  // `rows`: of a family; kBoundRows for other plans.
  Status Launch(Plan& plan, const Layout& layout, const std::vector<Binding>& bindings, Way way,
                int64_t rows);
  Status Upload(const Layout& layout);
  Status Download(const Layout& layout);
  // Checks that only outputs have changed; fills `outputs` by slot.
  Status Collect(const Case& test, const Layout& layout, Image image,
                 std::vector<std::vector<std::byte>>* outputs) const;

  RankOptions options_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<RankDevice> device_;
  Arena own_, symmetric_;
  std::unique_ptr<RankStream> stream_;  // before the arenas' end: its work refers to them
  int prepared_ = 0;                    // cases so far: the plan's key
};

}  // namespace tandem::conformance
