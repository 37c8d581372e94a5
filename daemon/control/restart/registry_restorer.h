// File: registry_restorer.h
//
// `RegistryRestorer`: makes the registry's records again, from the journal of an earlier tandemd and the
// descriptors that engines kept (docs/restart.md). It sends no engine anything.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/control/joins/join_service.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/restart/saved_state.h"
#include "daemon/supervisor/engine_holdings.h"

namespace tandem::daemon {

// Used once, for an empty registry.
class RegistryRestorer {
 public:
  RegistryRestorer(ControlCore& core, const JoinService& joins, const SavedState& state,
                   const AllHoldings& engines)
      : core_(core), joins_(joins), state_(state), engines_(engines) {}

  void Restore() TANDEM_REQUIRES(registry_mutex);
  // Members that are still in their groups, while the journal lacks their session: the group, the rank.
  const std::vector<std::pair<uint64_t, int>>& orphans() const { return orphans_; }

 private:
  void RestoreSets() TANDEM_REQUIRES(registry_mutex);
  void RestoreSessions() TANDEM_REQUIRES(registry_mutex);
  void RestoreGroup(const state::v1::Group& from) TANDEM_REQUIRES(registry_mutex);
  void RestoreTensors(const state::v1::Group& from, GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  void RestorePlans(const state::v1::Group& from, const std::shared_ptr<GroupRecord>& group)
      TANDEM_REQUIRES(registry_mutex);
  void RestoreClientMemory(const state::v1::Group& from, GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  // Those of which somebody has a block, or a group.
  void KeepUsedSets() TANDEM_REQUIRES(registry_mutex);
  void Charge() TANDEM_REQUIRES(registry_mutex);

  // One record of a tensor, whoever names it.
  std::shared_ptr<TensorRecord> TensorOf(const state::v1::Tensor& from) TANDEM_REQUIRES(registry_mutex);
  std::shared_ptr<SegmentSet> SetOf(uint64_t name) TANDEM_REQUIRES(registry_mutex);
  // The descriptors of a thing, of whichever engine has them.
  std::vector<SharedFd> FdsOf(EngineHoldings::Kind kind, uint64_t id) const;

  ControlCore& core_;
  const JoinService& joins_;
  const SavedState& state_;
  const AllHoldings& engines_;
  std::map<uint64_t, std::shared_ptr<SegmentSet>> sets_;
  std::set<std::shared_ptr<SegmentSet>> used_;
  std::vector<std::pair<uint64_t, int>> orphans_;
  std::map<uint64_t, std::shared_ptr<TensorRecord>> tensors_;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<SymmetricBlock>> blocks_;  // by set and offset
};

}  // namespace tandem::daemon
