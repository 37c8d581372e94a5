// File: pending_suspension.h
//
// `PendingSuspension`: an operator's request to a job to suspend its groups, until they sleep or it has
// failed (docs/suspend.md). Its sessions agree on a step first. Then all of them come to it.
//
// Thread rule: under the registry's mutex, except for what never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "daemon/control/base/barrier.h"
#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/base/waiter.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct PendingSuspension {
  PendingSuspension(uint64_t id, std::set<uint64_t> asked, std::set<uint64_t> groups,
                    Waiter::Clock::time_point deadline)
      : id(id),
        sessions(asked.begin(), asked.end()),
        groups(std::move(groups)),
        deadline(deadline),
        agreed(sessions.size(), "the request to suspend", "answer it"),
        arrived(sessions.size(), "the request to suspend", "come to its step") {}

  const uint64_t id;
  const std::vector<uint64_t> sessions;  // by slot of the meetings
  const std::set<uint64_t> groups;       // that are to sleep
  const Waiter::Clock::time_point deadline;

  // The slot of a session; none: it has not been asked.
  std::optional<size_t> SlotOf(uint64_t session) const {
    for (size_t slot = 0; slot < sessions.size(); ++slot) {
      if (sessions[slot] == session) return slot;
    }
    return std::nullopt;
  }
  // Ends it for `why`, which is not OK. The first cause stands.
  void Fail(const Status& why) TANDEM_REQUIRES(registry_mutex) {
    if (failure.ok()) failure = why;
    agreed.End(failure);
    arrived.End(failure);
  }

  Barrier agreed, arrived;
  uint64_t step TANDEM_GUARDED_BY(registry_mutex) = 0;  // the last that any session has begun
  Status failure TANDEM_GUARDED_BY(registry_mutex);     // why the job does not sleep
};

}  // namespace tandem::daemon
