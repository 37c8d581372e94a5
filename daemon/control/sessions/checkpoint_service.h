// File: checkpoint_service.h
//
// `CheckpointService`: a session outlives its process, for a restored one that shows the secret (docs/suspend.md). The
// order is Begin, then the lease's last message, then Restore from another lease.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "daemon/control/base/lease_port.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class CheckpointService {
 public:
  explicit CheckpointService(ControlCore& core) : core_(core) {}

  // A secret for one restoration. The session still ends with its lease. FAILED_PRECONDITION: reason NOT_SUSPENDED, with
  // the group, or HAS_CHANNELS. UNIMPLEMENTED: another backend than the host's.
  Result<v1::BeginCheckpointReply> Begin(const SessionRef& session) TANDEM_EXCLUDES(registry_mutex);
  // The lease ends, and the session waits for a restored process. FAILED_PRECONDITION, reason WRONG_SECRET:
  // `secret` is not that of Begin.
  Status LetGo(uint64_t session_id, const std::string& secret) TANDEM_EXCLUDES(registry_mutex);
  // `peer` has the session from now on, under a new token. The same process may ask again: its answer was lost.
  //
  // An error changes nothing. UNAUTHENTICATED: reason SESSION_LOST, where there is no such session or the token is
  // not its own; WRONG_SECRET; or why the session has ended. PERMISSION_DENIED: reason OTHER_USER, or
  // OTHER_GPUS, where the process may not use the session's. FAILED_PRECONDITION: reason NOT_CHECKPOINTED, or RESTORED
  // by another process.
  Result<SessionRef> Restore(const PeerIdentity& peer, const v1::RestoreRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // Sends the descriptors of memory that a restored process maps again. NOT_FOUND names what is not there.
  Result<v1::TakeSharedReply> TakeShared(const SessionRef& session, const v1::TakeSharedRequest& request)
      TANDEM_EXCLUDES(registry_mutex);

 private:
  // Whether `peer` may have the session for `secret`.
  Status CheckShown(const SessionRecord& session, const PeerIdentity& peer, const std::string& secret) const
      TANDEM_REQUIRES(registry_mutex);
  // OTHER_GPUS unless the session's groups are on `gpus` alone; none: all GPUs.
  Status CheckGpus(const SessionRecord& session, const std::optional<std::set<int>>& gpus) const
      TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
};

}  // namespace tandem::daemon
