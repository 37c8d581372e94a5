// File: suspension_service.h
//
// `SuspensionService`: a group's ranks put it to sleep and wake it up (docs/suspend.md). Asleep it has no
// memory, neither in its processes nor on engines; ids, plans and offsets stay.
#pragma once

#include <memory>
#include <vector>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class SuspensionService {
 public:
  SuspensionService(ControlCore& core, SegmentService& segments, GroupInstaller& installer)
      : core_(core), segments_(segments), installer_(installer) {}

  // One step of one rank; waits for the same step of all ranks. A step that the group has behind it is
  // answered at once, so that a rank whose answer was lost makes it again.
  //
  // DEADLINE_EXCEEDED: `ranks` did not come. Then a group that was to stop runs on, and every later step may
  // be repeated. ABORTED: the group is not where this step follows, and the rank begins with STOPPED or
  // RESUMING. FAILED_PRECONDITION, reason TENSOR_SHARED: the group's memory holds a tensor of another group.
  // RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED with ENGINE_DOWN, UNAVAILABLE: the memory cannot be made, and the
  // group stays asleep. Else why the group is over. NOT_FOUND. INVALID_ARGUMENT: a wrong step or number.
  Result<v1::SuspendGroupReply> Step(const SessionRef& session, const v1::SuspendGroupRequest& request,
                                     const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);

 private:
  // A rank's call.
  struct Call {
    std::shared_ptr<GroupRecord> group;
    size_t rank = 0;
    const Waiter& waiter;
  };
  Status Stop(RegistryLock& lock, const Call& call, uint64_t number) TANDEM_REQUIRES(registry_mutex);
  Status Unmap(RegistryLock& lock, const Call& call) TANDEM_REQUIRES(registry_mutex);
  Status Resume(RegistryLock& lock, const Call& call) TANDEM_REQUIRES(registry_mutex);
  Status Map(RegistryLock& lock, const Call& call) TANDEM_REQUIRES(registry_mutex);
  // All ranks have mapped the memory, and the engines hold the group.
  void Wake(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);

  // The group does not sleep, for `why`: nor does the job of an operator's request.
  void FailRequests(const GroupRecord& group, const Status& why) TANDEM_REQUIRES(registry_mutex);
  // FAILED_PRECONDITION if a tensor in the group's segments is another group's, too.
  Status CheckAlone(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);
  // Takes the group off its engines, and drops its memory. Returns once the engines have, or have not answered in
  // time. DEADLINE_EXCEEDED, reason GROUP_BUSY, and nothing is dropped.
  Status Drop(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Makes the memory that the group lacks, and installs it where the engines do not hold it.
  Status Make(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);

  ControlCore& core_;
  SegmentService& segments_;
  GroupInstaller& installer_;
};

}  // namespace tandem::daemon
