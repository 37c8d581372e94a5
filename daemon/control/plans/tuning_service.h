// File: tuning_service.h
//
// `TuningService`: measured times. An operator's times become an entry under the very key by which plans look
// it up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/control/base/control_options.h"
#include "daemon/control/records/control_core.h"
#include "daemon/planner/tuning/tuning_table.h"
#include "daemon/topology/topology.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The model by which the tuning table knows these GPUs; empty where no table can hold for them.
std::string TuningModel(const ControlCore& core, const std::vector<int>& gpus);

// Thread-safe. `core` outlives it.
class TuningService {
 public:
  explicit TuningService(ControlCore& core) : core_(core) {}

  // Takes measured times into the tuning table, under the key and shape that `request` has on these GPUs (in
  // rank order); the entry. `client`: the uid whose program has measured them; none: an operator's, for whom
  // a part of the table is kept. INVALID_ARGUMENT for times of a plan that cannot run, UNAVAILABLE if they
  // cannot be kept, RESOURCE_EXHAUSTED if the table is full.
  Result<plan::TuningEntry> Put(OpRequest request, const std::vector<std::string>& gpu_uuids,
                                std::vector<plan::TuningCandidate> candidates,
                                std::optional<uint32_t> client = std::nullopt);
  // The same for a request from outside, with the errors of ParseOpRequest.
  Result<plan::TuningEntry> Put(const v1::OpRequest& request, const std::vector<std::string>& gpu_uuids,
                                std::vector<plan::TuningCandidate> candidates);

 private:
  // The GPUs of a group that a table can have times for.
  Result<std::vector<int>> GpusOf(const std::vector<std::string>& gpu_uuids) const;

  ControlCore& core_;
};

}  // namespace tandem::daemon
