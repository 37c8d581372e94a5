// File: group_service.h
//
// `GroupService`: the end of a group. Members leave or are lost, the group breaks, and when the last member
// has gone its name is free for the next incarnation.
#pragma once

#include <memory>
#include <string>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/memory/client_memory.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class GroupService {
 public:
  GroupService(ControlCore& core, SegmentService& segments, GroupInstaller& installer,
               ClientMemoryService& client_memory)
      : core_(core), segments_(segments), installer_(installer), client_memory_(client_memory) {}

  // Waits for the rank's own launches; later launches of the others fail with the rank's name. NOT_FOUND.
  Status Leave(const SessionRef& session, uint64_t group_id, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);

  // The group fails for `why`: its engines and the members' verdict pages end launches, its members get the
  // status and events. `lost_rank`
  // (-1: none) gets no event. Nothing happens to a group that is broken already.
  void Break(GroupRecord& group, const Status& why, int lost_rank) TANDEM_REQUIRES(registry_mutex);
  // Groups that have slept longer than ControlOptions::suspension_limit fail with reason SUSPENSION_LIMIT.
  void EndLongSuspensions() TANDEM_EXCLUDES(registry_mutex);
  // The group's client-placed launches fail for `why` until its ranks have renewed it; engines' go on.
  void Stall(GroupRecord& group, const Status& why) TANDEM_REQUIRES(registry_mutex);
  // The engines have ended the group's launches for `why`, until a renewal. The first reason stands.
  void NoteEnginesStalled(GroupRecord& group, const Status& why) TANDEM_REQUIRES(registry_mutex);
  // A group that a rank has left fails, since an engine has gone or goes. Its reason stays the rank.
  void BreakClosing(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  // A member is no longer there, by its own end or because its session was `lost`.
  void RemoveMember(const std::shared_ptr<GroupRecord>& group, int rank, bool lost)
      TANDEM_REQUIRES(registry_mutex);
  // Gives everything back that the group has. Its members' ids of it are NOT_FOUND from now on.
  void Destroy(const std::shared_ptr<GroupRecord>& group) TANDEM_REQUIRES(registry_mutex);

  // Tells the members that are still there.
  void PostEvent(GroupRecord& group, const v1::Event& event, int except_rank)
      TANDEM_REQUIRES(registry_mutex) {
    group.PostEvent(event, except_rank, core_.options.limits.events_per_session);
  }
  // An event of this kind, about `rank` (-1: none), with `status`.
  static v1::Event EventOf(const GroupRecord& group, v1::Event::Kind kind, int rank, const Status& status)
      TANDEM_REQUIRES(registry_mutex);

 private:
  // Counts a stall, logs it and announces it to the members.
  void ShowStall(GroupRecord& group, const Status& why) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  SegmentService& segments_;
  GroupInstaller& installer_;
  ClientMemoryService& client_memory_;
};

}  // namespace tandem::daemon
