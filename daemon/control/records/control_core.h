// File: control_core.h
//
// `ControlCore`: the parts that all services of the control plane share. Their own state is in the registry.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "daemon/control/base/control_options.h"
#include "daemon/control/base/gpu_sharing.h"
#include "daemon/control/base/lease_port.h"
#include "daemon/control/records/registry.h"
#include "daemon/supervisor/engines.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct ControlCore {
  ControlCore(ControlOptions from, Engines& all)
      : options(std::move(from)), engines(all), registry(options.limits, options.allow) {}

  ControlOptions options;  // not changed once sessions attach, except for quotas (Control::SetLimits)
  Engines& engines;
  Registry registry;

  // No call of the port before is under way when this returns.
  void SetLeasePort(LeasePort* port);
  // Any thread.
  void Log(LogSeverity severity, const std::string& text) const;
  // The same for what a user's programs do, however often they do it: ControlOptions::log_of. `uid`: none if
  // nobody knows whose it is.
  void LogOf(std::optional<uint32_t> uid, LogSeverity severity, const std::string& text) const;
  // The position of a GPU. NOT_FOUND, reason NO_GPU.
  Result<int> FindGpu(const std::string& uuid) const;
  // The same for a session's call. PERMISSION_DENIED, reason GPU_NOT_ALLOWED, if the session may not use it.
  Result<int> FindGpu(const SessionRecord& session, const std::string& uuid) const;
  // The same for a call that needs the GPU's engine: the engine starts if it rests, and does not rest before
  // the session's end. It may not be up yet.
  Result<int> UseGpu(SessionRecord& session, const std::string& uuid) TANDEM_EXCLUDES(registry_mutex);
  // Engines keep what outlives tandemd: where sessions do, each uses one from its beginning.
  void KeepAnEngine(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
  // The GPUs that a process may use, by the rules; none: all. PERMISSION_DENIED, reason NOT_ALLOWED, if no
  // rule fits.
  Result<std::optional<std::set<int>>> AllowedGpus(const PeerIdentity& peer) const
      TANDEM_REQUIRES(registry_mutex);
  // UNAVAILABLE, reason ENGINE_CRASH_LOOPED and the cure, if the engine of `gpu` is held down; else OK. It
  // stays down until an operator acts, so nobody should wait for it.
  Status CheckCrashLoop(int gpu) const;
  // Closes an ended session's lease, if there are leases.
  void CloseLease(uint64_t session_id, const Status& why) const;
  // Sends descriptors to a session by its lease.
  Status SendDescriptors(uint64_t session_id, uint64_t transfer_id, const std::vector<SharedFd>& fds) const;
  // For GroupLifecycle: logs, and calls options.illegal_transition.
  std::function<void(const std::string&)> IllegalTransitionHandler() const;
  // Where the group's kernels run, as of now.
  GpuSharing GpuSharingOf(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);

 private:
  mutable std::shared_mutex lease_port_mutex_;  // shared in calls of the port
  LeasePort* lease_port_ = nullptr;
};

}  // namespace tandem::daemon
