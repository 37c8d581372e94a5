// File: join_service.h
//
// `JoinService`: joining a group. Ranks meet under a name, their claims are compared, and the last one makes
// the group.
//
// One join has one verdict, and it names the first cause: all ranks that wait get it at once, and ranks that
// come late get it once, instead of waiting for ranks that have gone. A process that was started after the
// verdict belongs to the next attempt: it opens a new barrier.
#pragma once

#include <memory>
#include <string>

#include "daemon/control/base/waiter.h"
#include "daemon/control/engines/group_restorer.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class JoinService {
 public:
  JoinService(ControlCore& core, GroupInstaller& installer, GroupService& groups, GroupRestorer& restorer)
      : core_(core), installer_(installer), groups_(groups), restorer_(restorer) {}

  // Waits for all ranks of the group and for its engines.
  Result<v1::JoinGroupReply> Join(const SessionRef& session, const v1::JoinGroupRequest& request,
                                  const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // The session has ended: the joins that it takes part in fail, with its rank's name.
  void EndJoinsOf(const SessionRecord& session, const std::string& how) TANDEM_REQUIRES(registry_mutex);
  // Ends all joins that wait for ranks; no verdict is kept.
  void Stop(const Status& why) TANDEM_REQUIRES(registry_mutex);
  // Sets the facts by which plans of the group are chosen, and its topology's class, from GPUs and options.
  void FillContext(GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);

 private:
  // Waits until no earlier incarnation of the name is in the way. A member of a broken or closing incarnation
  // that joins its name again leaves the incarnation by that.
  Status AwaitNameFree(RegistryLock& lock, const std::string& scope, const SessionRef& session,
                       const v1::JoinGroupRequest& request, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // Waits while a group of the name is in the making.
  void AwaitMade(RegistryLock& lock, const std::string& scope, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // Waits while an earlier call of this session has the rank's slot. A client that breaks a join off may
  // repeat it before the first call is seen to be cancelled.
  void AwaitBrokenOff(RegistryLock& lock, const std::string& scope, const SessionRef& session,
                      const v1::JoinGroupRequest& request, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // The verdict that is kept for this latecomer, or OK; then it may open or enter a barrier.
  Status TakeVerdict(NameRecord& name, const SessionRecord& session, int rank)
      TANDEM_REQUIRES(registry_mutex);
  // The group that an earlier call of this rank has made, or null.
  const GroupRecord* MadeFor(const std::string& scope, const SessionRecord& session,
                             const v1::JoinGroupRequest& request) const TANDEM_REQUIRES(registry_mutex);
  // Compares the claim with those that have come, and takes its slot.
  Status TakeSlot(JoinBarrier& barrier, const SessionRef& session, const v1::JoinGroupRequest& request,
                  int gpu, const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);
  // Ends the name's barrier of `world` ranks, and keeps the verdict for ranks that have not got it. The
  // caller gets it with its answer: `caller` (null: a session that has ended), which asked for `rank`.
  void Fail(const std::string& scope, const Status& why, int world, const SessionRecord* caller, int rank)
      TANDEM_REQUIRES(registry_mutex);
  // The last rank's part: makes the group and installs it.
  Status MakeAndInstall(RegistryLock& lock, const std::string& scope, JoinBarrier& barrier)
      TANDEM_REQUIRES(registry_mutex);
  Result<std::shared_ptr<GroupRecord>> MakeGroup(const std::string& scope, const JoinBarrier& barrier)
      TANDEM_REQUIRES(registry_mutex);
  void FillReply(const GroupRecord& group, v1::JoinGroupReply* reply) const TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  GroupInstaller& installer_;
  GroupService& groups_;
  GroupRestorer& restorer_;
};

}  // namespace tandem::daemon
