#include "daemon/control/sessions/event_service.h"

#include <string>
#include <utility>

namespace tandem::daemon {

uint64_t EventService::Open(const SessionRef& session) {
  RegistryLock lock(core_.registry);
  session->events_changed.notify_all();
  return ++session->event_streams;
}

Result<std::optional<v1::Event>> EventService::Next(const SessionRef& session, uint64_t stream,
                                                    const Waiter& waiter) {
  RegistryLock lock(core_.registry);
  waiter.Wait(lock, session->events_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
    return !session->events.empty() || session->ended || core_.registry.stopping ||
           session->event_streams != stream;
  });
  if (session->event_streams != stream) return Aborted("a newer stream of the session's events is open");
  if (!session->events.empty()) {
    v1::Event event = std::move(session->events.front());
    session->events.pop_front();
    if (const uint64_t dropped = std::exchange(session->events_dropped, 0); dropped > 0) {
      core_.registry.counters.events_dropped_total += dropped;
      core_.LogOf(session->peer.uid, LogSeverity::kWarning,
                  "session=" + std::to_string(session->id) + " has not read its events in time: the oldest " +
                      std::to_string(dropped) + " were dropped");
    }
    return std::optional<v1::Event>(std::move(event));
  }
  // A stream ends with its cause, and not as a call that lacks a token would.
  if (session->ended) return Unavailable(session->end.message()).WithDetail(session->end.detail());
  if (core_.registry.stopping) return Unavailable("the daemon is stopping");
  return std::optional<v1::Event>();
}

void EventService::PostToAll(const v1::Event& event) {
  for (const auto& [id, session] : core_.registry.sessions) {
    session->PostEvent(event, core_.options.limits.events_per_session);
  }
}

}  // namespace tandem::daemon
