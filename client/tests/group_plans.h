// File: group_plans.h
//
// `GroupPlans`: plans that the clients launch, made by the planner as tandemd makes them, for a FakeDaemon.
#pragma once

#include <cstdint>
#include <vector>

#include "client/lib/base/control_api.h"
#include "common/unique_fd.h"

namespace tandem::client {

// The memory of one group's plans on the host backend. Thread-safe.
class GroupPlans {
 public:
  // RESOURCE_EXHAUSTED: no memory or no descriptor.
  static Result<GroupPlans> Make(int world_size);
  // The daemon's answer to `rank` about the plan of a request that all ranks make. All plans share the words
  // and the workspace.
  Result<ClientPlacementInfo> Place(int rank, const OpRequest& request) const;

 private:
  int world_size_ = 0;
  std::vector<UniqueFd> pages_, signals_, workspace_;  // by rank
  std::vector<uint64_t> signal_ids_, workspace_ids_;
};

}  // namespace tandem::client
