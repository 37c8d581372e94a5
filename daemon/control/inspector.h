// File: inspector.h
//
// `Inspector`: snapshots of the registry for operators, as plain values.
#pragma once

#include <string>
#include <vector>

#include "daemon/control/base/snapshot.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it. Each snapshot is taken under one short lock, and is consistent in itself.
class Inspector {
 public:
  Inspector(ControlCore& core, std::string instance_id) : core_(core), instance_id_(std::move(instance_id)) {}

  ControlSnapshot Snapshot() TANDEM_EXCLUDES(registry_mutex);
  std::vector<SessionSnapshot> SnapshotSessions() TANDEM_EXCLUDES(registry_mutex);
  // Groups, and joins that still wait for ranks.
  std::vector<GroupSnapshot> SnapshotGroups() TANDEM_EXCLUDES(registry_mutex);
  std::vector<PoolSnapshot> SnapshotPools() TANDEM_EXCLUDES(registry_mutex);
  PlanPage SnapshotPlans(const PlanQuery& query) TANDEM_EXCLUDES(registry_mutex);
  std::vector<ChannelSnapshot> SnapshotChannels() TANDEM_EXCLUDES(registry_mutex);

 private:
  ControlCore& core_;
  const std::string instance_id_;
  const Waiter::Clock::time_point started_ = Waiter::Clock::now();
};

}  // namespace tandem::daemon
