// File: launch_service.h
//
// `LaunchService`: launches by gRPC, for work without a stream.
#pragma once

#include <cstdint>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class LaunchService {
 public:
  LaunchService(ControlCore& core, GroupInstaller& installer) : core_(core), installer_(installer) {}

  // Arrives on receipt. Returns at once; the engine reports bindings that are wrong with the launch's
  // outcome.
  Result<v1::LaunchReply> Launch(const SessionRef& session, const v1::LaunchRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // The launch's outcome, which is returned once. DEADLINE_EXCEEDED, reason NOT_ENDED.
  Status Wait(const SessionRef& session, uint64_t launch_id, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // A launch on `gpu` has ended; the first end stands.
  void End(int gpu, uint64_t launch_id, Status status) TANDEM_EXCLUDES(registry_mutex);
  // The engine of `gpu` has ended.
  void EndAllOf(int gpu, const Status& ended) TANDEM_REQUIRES(registry_mutex);
  // The session has ended: nobody asks for its launches any more.
  void ForgetAllOf(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);

 private:
  ControlCore& core_;
  GroupInstaller& installer_;
};

}  // namespace tandem::daemon
