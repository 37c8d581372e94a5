// File: tune_rank.h
//
// One rank of a measurement: joins a group of the measurement's own, binds memory to the request's operands,
// and times plans of it by the client library, as a training process would run them. `tandemctl tune` names
// the plan and the count, so that all ranks are at the same plan.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "client/device/rank_device.h"
#include "client/device/scratch_operands.h"
#include "tandem/client.h"

namespace tandem::tune {

struct RankOptions {
  std::string runtime_dir, gpu_uuid;
  int world = 2;
  int rank = 0;
  Milliseconds deadline = kDefaultDeadline;  // of each call, and of a launch from its first arrival
};

class TuneRank {
 public:
  explicit TuneRank(RankOptions options) : options_(std::move(options)) {}

  // Connects if that is still to be done, joins a new group, and fills the operands of `request` with
  // numbers: a GPU that multiplies zeros runs faster.
  Status Start(const OpRequest& request, const std::string& job_key);
  // A plan of the request by these parameters, under `key`, launched once. The plan's summary, prediction and
  // parameters go to `reply`.
  Status Prepare(const std::string& key, Algorithm algorithm, int steps, int lanes, nlohmann::json* reply);
  // Microseconds of one of `launches` launches: see PlanTimer.
  Result<double> Run(const std::string& key, int launches);
  Status Release(const std::string& key);
  // Leaves, and lets go of memory and plans; the next Start makes others. The process's GPU context stays.
  Status End();

 private:
  RankOptions options_;
  OpRequest request_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<RankDevice> device_;
  std::unique_ptr<RankStream> stream_;
  std::unique_ptr<RankEvent> start_, end_;
  std::unique_ptr<ScratchOperands> scratch_;
  std::map<std::string, std::shared_ptr<Plan>> plans_;
};

}  // namespace tandem::tune
