// File: asked_suspension.h
//
// `AskedSuspension`: an operator asks a job to give up its GPU memory, and wakes it up again (docs/suspend.md). A job is
// a session, and all sessions that are connected with it by groups. The library of each session suspends the groups.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>

#include "daemon/control/base/snapshot.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/records/pending_suspension.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class AskedSuspension {
 public:
  explicit AskedSuspension(ControlCore& core) : core_(core) {}

  // Whether the operator may ask sessions of a uid.
  using May = std::function<bool(uint32_t uid)>;

  // Returns once all groups of the session's job sleep; at once if they do. NOT_FOUND: no such session, or one that the
  // operator may not ask. FAILED_PRECONDITION: reason NO_GROUP, NOT_OFFERED, which names sessions that take no requests,
  // or what hinders a group. DEADLINE_EXCEEDED: sessions were late, and are named. UNAVAILABLE: a session of
  // the job has ended. After an error the job goes on.
  Result<AskedJob> Suspend(uint64_t session_id, const May& may, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Returns once no group of the job sleeps. RESOURCE_EXHAUSTED and other reasons why memory cannot be made: the job
  // sleeps on. FAILED_PRECONDITION, reason UNDER_WAY: it is being suspended. Else as Suspend.
  Result<AskedJob> Resume(uint64_t session_id, const May& may, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // A session's side: ServeSuspension of tandem.proto.
  Result<v1::ServeSuspensionReply> Serve(const SessionRef& session, const v1::ServeSuspensionRequest& request,
                                         const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);

 private:
  // The sessions that groups connect with this one, and these groups.
  Result<AskedJob> JobOf(uint64_t session_id, const May& may) const TANDEM_REQUIRES(registry_mutex);
  // NOT_OFFERED, if a session of the job takes no requests.
  Status CheckOffered(const AskedJob& job) const TANDEM_REQUIRES(registry_mutex);
  // The request that the job has now, or a new one of which its sessions hear. `made`: it is new.
  Result<std::shared_ptr<PendingSuspension>> RequestOf(const AskedJob& job, const Waiter& waiter, bool* made)
      TANDEM_REQUIRES(registry_mutex);
  // The request is over: those whom it has put to sleep are woken up if it has failed.
  void Close(const std::shared_ptr<PendingSuspension>& request, const Status& why)
      TANDEM_REQUIRES(registry_mutex);
  void Tell(const std::set<uint64_t>& sessions, v1::Event::Kind kind, uint64_t request)
      TANDEM_REQUIRES(registry_mutex);
  // OK while the groups live; else why one of them does not.
  Status CheckAlive(const std::set<uint64_t>& groups) const TANDEM_REQUIRES(registry_mutex);
  bool AllSleep(const std::set<uint64_t>& groups) const TANDEM_REQUIRES(registry_mutex);
  // "session 7 (pid 12, 'serve')" for each.
  std::string Named(const std::set<uint64_t>& sessions) const TANDEM_REQUIRES(registry_mutex);
  // DEADLINE_EXCEEDED, which names those that the request waits for.
  Status LateStatus(const PendingSuspension& request) const TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
};

}  // namespace tandem::daemon
