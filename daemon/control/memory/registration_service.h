// File: registration_service.h
//
// `RegistrationService`: the clients' own memory, as engines map it.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class RegistrationService {
 public:
  explicit RegistrationService(ControlCore& core) : core_(core) {}

  // Takes the descriptors of a transfer, or a CUDA IPC handle, and waits until the engine has mapped the
  // memory.
  Result<v1::RegisterTensorReply> Register(const SessionRef& session,
                                           const v1::RegisterTensorRequest& request, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // OK once the engine has let go of the memory, which the caller may then free. NOT_FOUND.
  Status Deregister(const SessionRef& session, uint64_t registration_id, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Takes all of the session's memory off the engines, and gives back what it was charged, except for
  // descriptors.
  void RemoveAllOf(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
  // Sends all registrations of a new engine's GPU to it.
  void SendAgain(int gpu) TANDEM_REQUIRES(registry_mutex);

 private:
  Result<RegistrationRecord> MakeRecord(const SessionRef& session, const v1::RegisterTensorRequest& request,
                                        const Waiter& waiter);
  void Post(const SessionRecord& session, uint64_t registration_id,
            const std::shared_ptr<CommandBatch>& batch) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
};

}  // namespace tandem::daemon
