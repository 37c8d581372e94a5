// File: session_service.h
//
// `SessionService`: attach, authentication, descriptors, places for calls, and the ways in which a session
// ends.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/control/base/background_worker.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/channels/channel_service.h"
#include "daemon/control/channels/launch_service.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/joins/join_service.h"
#include "daemon/control/memory/registration_service.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/tensors/tensor_service.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class SessionService {
 public:
  struct Services {
    JoinService& joins;
    GroupService& groups;
    TensorService& tensors;
    RegistrationService& registrations;
    ChannelService& channels;
    LaunchService& launches;
  };
  SessionService(ControlCore& core, Services services, std::string instance_id)
      : core_(core), of_(services), instance_id_(std::move(instance_id)) {}

  Result<v1::AttachReply> Attach(const PeerIdentity& peer, const v1::AttachRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // A session that was taken over from an earlier tandemd gets its lease back. UNAUTHENTICATED, reason
  // SESSION_LOST, if there is none, or the peer is another process.
  Result<v1::AttachReply> Reattach(const PeerIdentity& peer, const v1::ReattachRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // The answer to a lease that has the session from now on.
  v1::AttachReply ReplyTo(const SessionRecord& session) const TANDEM_EXCLUDES(registry_mutex);
  // Sessions that have waited for a restored process longer than ControlOptions::suspension_limit are lost.
  void EndLongCheckpoints() TANDEM_EXCLUDES(registry_mutex);
  // The sessions that have not got their lease back.
  std::vector<std::pair<uint64_t, PeerIdentity>> AwaySessions() TANDEM_EXCLUDES(registry_mutex);
  // The session of a token, compared in constant time. UNAUTHENTICATED: reason NO_TOKEN, BAD_TOKEN, EVICTED
  // for a session that an operator ended, or SESSION_LOST for one that ended otherwise or belongs to an
  // earlier daemon. UNAVAILABLE, reason RESTARTING, while its lease has not come back.
  Result<SessionRef> Authenticate(std::string_view token) TANDEM_EXCLUDES(registry_mutex);
  // A session's descriptors as they come over its lease.
  Status AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds)
      TANDEM_EXCLUDES(registry_mutex);
  // The sessions that there are.
  std::set<uint64_t> Ids() TANDEM_EXCLUDES(registry_mutex);
  // Closes unclaimed descriptors that are too old; true while some are left.
  bool ReapOrphans() TANDEM_EXCLUDES(registry_mutex);
  // A place for one call of the session, for as long as it is held; see Control::Admit.
  Result<std::shared_ptr<void>> Admit(const SessionRef& session) TANDEM_EXCLUDES(registry_mutex);

  // The process has died, or its lease has ended with it: its groups break, and everything of it is freed.
  // `how` goes on from a subject: "was lost: its process has ended".
  void Lost(uint64_t session_id, const std::string& why) TANDEM_EXCLUDES(registry_mutex);
  // A process that lives on has closed its lease: it leaves its groups as by Detach, in the background. If
  // its launches do not end in time, the session counts as lost.
  void LeaseClosed(uint64_t session_id) TANDEM_EXCLUDES(registry_mutex);
  // Leaves all groups and ends the session.
  Status Detach(const SessionRef& session, const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // Ends a session as if its process had died, except that the client gets the reason. `by`: the operator,
  // for people. NOT_FOUND.
  Status Evict(uint64_t session_id, const std::string& by) TANDEM_EXCLUDES(registry_mutex);

  // Waits for the departure under way; no session leaves by LeaseClosed afterwards.
  void EndDepartures() { departures_.End(); }

 private:
  enum class End { kDetached, kClosed, kLost, kEvicted, kExpired };
  Status LeaveGroups(const SessionRef& session, const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // `how`: "was lost: ...", "was evicted by ...", "has left".
  void EndSession(uint64_t session_id, End end, const std::string& how) TANDEM_EXCLUDES(registry_mutex);
  void EndMemberships(SessionRecord& session, End end, const std::string& how)
      TANDEM_REQUIRES(registry_mutex);
  void FreeAllOf(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  Services of_;
  const std::string instance_id_;
  BackgroundWorker departures_;  // last: its thread uses the others
};

}  // namespace tandem::daemon
