// File: workspace.h
//
// `WorkspaceService`: the memory that the plans of a group share: two halves, which launches take in turn,
// and the bulk area.
#pragma once

#include <cstdint>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class WorkspaceService {
 public:
  WorkspaceService(ControlCore& core, SegmentService& segments, GroupInstaller& installer)
      : core_(core), segments_(segments), installer_(installer) {}

  // Makes room for a plan that uses `half_bytes` of each half and `bulk_bytes` of the bulk area. The caller
  // holds the group's `work`. The old memory stays until the group ends, since programs in flight may use it;
  // sizes double, so that this is at most as much again.
  Status Grow(GroupRecord& group, uint64_t half_bytes, uint64_t bulk_bytes, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);

 private:
  ControlCore& core_;
  SegmentService& segments_;
  GroupInstaller& installer_;
};

}  // namespace tandem::daemon
