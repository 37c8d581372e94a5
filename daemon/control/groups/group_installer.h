// File: group_installer.h
//
// `GroupInstaller`: puts groups on their engines, at first and after a restart, takes them off, and makes
// calls wait for an installation that is under way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/control/base/timed_lock.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. `core` and `segments` outlive it.
class GroupInstaller {
 public:
  GroupInstaller(ControlCore& core, SegmentService& segments) : core_(core), segments_(segments) {}

  // Gives the engines the group's control segments, arrival table, workspace, registrations and plans. The
  // caller holds the group's `work`.
  Status Install(GroupRecord& group, const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // Takes the group off its engines; that of `except_gpu` (-1: none) has gone. Commands are executed in
  // order, so lanes have drained before segments are removed.
  void Uninstall(GroupRecord& group, int except_gpu) TANDEM_REQUIRES(registry_mutex);
  // Whether the engines are those that Install has sent the group to.
  bool SameEngines(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);

  // Waits until the engines hold the group. DEADLINE_EXCEEDED, reason ENGINE_DOWN; UNAVAILABLE with the cure
  // if an engine is held down; the group's own status once it is over.
  Status AwaitInstalled(RegistryLock& lock, const GroupRecord& group, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // The same without waiting.
  Status Installed(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);

  // For work that one rank's call does for all ranks, up to `deadline`. The work goes on when that call is
  // cancelled, and ends with the group: a process that dies ends its session, and so the group.
  static Waiter ForAllRanks(std::shared_ptr<GroupRecord> group, Waiter::Clock::time_point deadline);
  // GroupRecord::work. DEADLINE_EXCEEDED, reason GROUP_BUSY.
  static Result<std::unique_lock<TimedLock>> TakeWork(GroupRecord& group, const Waiter& waiter);
  // The id from which the ranks' communicators are made, by the engine of rank 0.
  Result<std::string> MakeUniqueId(const GroupRecord& group) TANDEM_EXCLUDES(registry_mutex);

  void PostWorkspace(GroupRecord& group, const std::shared_ptr<CommandBatch>& batch)
      TANDEM_REQUIRES(registry_mutex);
  // Posts the registration of a symmetric tensor.
  void PostRegistration(GroupRecord& group, uint64_t registration_id,
                        const std::shared_ptr<CommandBatch>& batch) TANDEM_REQUIRES(registry_mutex);

 private:
  // The launches of each plan so far, which go on in the next generation: the order log never names two
  // launches alike.
  std::map<uint64_t, uint64_t> CountLaunches(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  engine::v1::Command AddGroupCommand(const GroupRecord& group, const SegmentSet& control, size_t rank,
                                      const std::string& unique_id) const TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  SegmentService& segments_;
};

}  // namespace tandem::daemon
