// File: event_service.h
//
// `EventService`: the streams by which sessions get the events of their groups and of the daemon.
#pragma once

#include <cstdint>
#include <optional>

#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class EventService {
 public:
  explicit EventService(ControlCore& core) : core_(core) {}

  // Opens a stream of the session's events, in place of the one before: each event is delivered once, so two
  // streams would share them, and each holds a thread of the service.
  uint64_t Open(const SessionRef& session) TANDEM_EXCLUDES(registry_mutex);
  // The stream's next event, or nothing at the waiter's end. The session's end status once it has ended,
  // ABORTED once a newer stream has been opened, UNAVAILABLE while the daemon stops.
  Result<std::optional<v1::Event>> Next(const SessionRef& session, uint64_t stream, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Queues an event for every session.
  void PostToAll(const v1::Event& event) TANDEM_REQUIRES(registry_mutex);

 private:
  ControlCore& core_;
};

}  // namespace tandem::daemon
