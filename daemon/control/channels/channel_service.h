// File: channel_service.h
//
// `ChannelService`: channels, one client stream's way to an engine each.
#pragma once

#include <cstdint>

#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class ChannelService {
 public:
  explicit ChannelService(ControlCore& core) : core_(core) {}

  // Waits for the GPU's engine; the ring and the words go by the lease.
  Result<v1::OpenChannelReply> Open(const SessionRef& session, const v1::OpenChannelRequest& request,
                                    const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // OK once the engine has let go of the channel. NOT_FOUND.
  Status Close(const SessionRef& session, uint64_t channel_id, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Takes all of the session's channels off their engines. The caller gives back what they were charged.
  void CloseAllOf(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
  // The engine of `gpu` has ended: streams that wait for it are released, with `ended`.
  void ReleaseOf(int gpu, const Status& ended) TANDEM_REQUIRES(registry_mutex);

 private:
  ControlCore& core_;
};

}  // namespace tandem::daemon
