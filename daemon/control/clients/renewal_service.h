// File: renewal_service.h
//
// `RenewalService`: client-placed launches of a stalled group go on (docs/client-placement.md). Its ranks
// meet twice. First no launch is under way on any rank. Then all counters stand behind every number that a
// word can hold, and no packet of an earlier launch is left.
#pragma once

#include "daemon/control/groups/group_service.h"
#include "daemon/control/store/control_core.h"
#include "daemon/control/waiter.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. The core outlives it.
class RenewalService {
 public:
  explicit RenewalService(ControlCore& core) : core_(core) {}

  // One step of one rank; waits for the same step of all ranks. After the last READY the verdict pages end no
  // launch any more. A group that is not stalled may be renewed too.
  //
  // DEADLINE_EXCEEDED: `ranks` did not come, and every rank begins again with STOPPED. ABORTED: a rank has
  // begun again, or READY came without STOPPED, and every rank begins again. FAILED_PRECONDITION: the group
  // has no client-placed plan. INVALID_ARGUMENT: a wrong step or number. Else why the group is over.
  // NOT_FOUND.
  Result<v1::RenewGroupReply> Renew(const SessionRef& session, const v1::RenewGroupRequest& request,
                                    const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);

 private:
  Result<v1::RenewGroupReply> Stop(RegistryLock& lock, GroupRecord& group, size_t rank, uint64_t number,
                                   const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);
  Result<v1::RenewGroupReply> Ready(RegistryLock& lock, GroupRecord& group, size_t rank, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // The answer to one rank's call, once all ranks have made `step` of `renewal`.
  static Result<v1::RenewGroupReply> Await(RegistryLock& lock, const GroupRecord& group,
                                           const Renewal& renewal, Rendezvous& step, size_t rank,
                                           const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
};

}  // namespace tandem::daemon
