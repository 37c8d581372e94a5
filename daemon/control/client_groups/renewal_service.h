// File: renewal_service.h
//
// `RenewalService`: launches of a stalled group go on, client-placed ones (docs/client-placement.md) and
// those of engines. Its ranks meet twice. First no launch is under way on any rank, and the engines set the
// counts of all plans behind every rank's. Then all counters of client-placed launches stand behind every
// number that a word can hold, and no packet of an earlier launch is left.
#pragma once

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. The core outlives it.
class RenewalService {
 public:
  RenewalService(ControlCore& core, GroupInstaller& installer) : core_(core), installer_(installer) {}

  // One step of one rank; waits for the same step of all ranks. After the last READY the verdict pages end no
  // launch any more. A group that is not stalled may be renewed too.
  //
  // DEADLINE_EXCEEDED: `ranks` did not come, and every rank begins again with STOPPED. ABORTED: a rank has
  // begun again, or READY came without STOPPED, and every rank begins again. FAILED_PRECONDITION: the group
  // has no client-placed plan, and a member that
  // cannot renew engines. INVALID_ARGUMENT: a wrong step or number. Else why the group is over.
  // NOT_FOUND.
  Result<v1::RenewGroupReply> Renew(const SessionRef& session, const v1::RenewGroupRequest& request,
                                    const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);

 private:
  Result<v1::RenewGroupReply> Stop(RegistryLock& lock, const std::shared_ptr<GroupRecord>& group, size_t rank,
                                   uint64_t number, const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);
  // The rank makes no launch before the renewal: launches that wait for it end on the other ranks. `number`:
  // the last client-placed one that it has finished.
  void EndLaunchesWithout(GroupRecord& group, size_t rank, uint64_t number) TANDEM_REQUIRES(registry_mutex);
  // All ranks' engines, one step after the other. ABORTED if one of them is restarted meanwhile.
  Status RenewEngines(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  Result<v1::RenewGroupReply> Ready(RegistryLock& lock, GroupRecord& group, size_t rank, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // The answer to one rank's call, once all ranks have made `step` of `renewal`.
  static Result<v1::RenewGroupReply> Await(RegistryLock& lock, const GroupRecord& group, Renewal& renewal,
                                           Barrier& step, size_t rank, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  GroupInstaller& installer_;
};

}  // namespace tandem::daemon
