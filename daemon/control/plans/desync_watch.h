// File: desync_watch.h
//
// `DesyncWatch`: in an ordered group, a rank that prepares a plan while another one waits in a launch that
// the first has not made. All ranks make all calls in one order, so one of the two has made another call than
// its peers, and neither would ever end.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/records/plan_records.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class DesyncWatch {
 public:
  DesyncWatch(ControlCore& core, GroupService& groups) : core_(core), groups_(groups) {}

  // Waits until the barrier is over or `waiter` is, as Barrier::AwaitEnd. Meanwhile it looks for a rank
  // that waits in a launch. If there is one, the barrier ends for all ranks and the group stalls. Both
  // carry FIELD_MISMATCH with the first field that differs, or DESYNC where none does. `next_client_launch`:
  // PrepareRequest's.
  void Await(RegistryLock& lock, const std::shared_ptr<GroupRecord>& group, PrepareBarrier& barrier,
             const std::string& key, size_t rank, uint64_t next_client_launch, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);

 private:
  // A launch that `peer` waits in.
  struct Found {
    uint64_t plan_id = 0;  // 0: not known
    uint64_t launch = 0;
    size_t peer = 0;
    bool in_client = false;
  };
  static std::optional<Found> Find(const GroupRecord& group, const PrepareBarrier& barrier, size_t rank,
                                   uint64_t next_client_launch) TANDEM_REQUIRES(registry_mutex);
  // The failure of a prepare that waits for a rank which renews the group; none if it waits for no such rank.
  static std::optional<Status> Renewing(const GroupRecord& group, const PrepareBarrier& barrier)
      TANDEM_REQUIRES(registry_mutex);
  static Status Describe(const GroupRecord& group, const PrepareBarrier& barrier, const std::string& key,
                         size_t rank, const Found& found) TANDEM_REQUIRES(registry_mutex);
  // Whether the engines agree that the rank has not made the launch. Then the launch has failed on all ranks.
  bool FailLaunch(RegistryLock& lock, GroupRecord& group, size_t rank, const Found& found, const Status& why)
      TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  GroupService& groups_;
};

}  // namespace tandem::daemon
