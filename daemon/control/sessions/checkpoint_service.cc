#include "daemon/control/sessions/checkpoint_service.h"

#include <sys/random.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::daemon {
namespace {

Status Random(void* bytes, size_t count) {
  if (::getrandom(bytes, count, 0) == static_cast<ssize_t>(count)) return Status::Ok();
  return Internal("no random numbers for a secret");
}

// In a time that says nothing about how much is right.
bool Same(std::string_view known, std::string_view shown) {
  if (known.empty() || known.size() != shown.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < known.size(); ++i)
    difference |= static_cast<unsigned>(static_cast<uint8_t>(known[i]) ^ static_cast<uint8_t>(shown[i]));
  return difference == 0;
}

std::string_view Bytes(const std::array<uint8_t, kTokenBytes>& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

Status WrongSecret(uint64_t session_id) {
  return Unauthenticated("this is not the secret of session " + std::to_string(session_id) +
                         "'s last checkpoint")
      .WithDetail({.reason = "WRONG_SECRET"});
}

Status NotCheckpointed(uint64_t session_id) {
  return FailedPrecondition("session " + std::to_string(session_id) +
                            " has not been left to a restored process: its own process has it")
      .WithDetail({.reason = "NOT_CHECKPOINTED"});
}

}  // namespace

Result<v1::BeginCheckpointReply> CheckpointService::Begin(const SessionRef& session) {
  if (core_.options.backend != "host") {
    return Status(
               Code::kUnimplemented,
               "sessions with GPUs outlive no process: use cuCheckpointProcess* between suspend and resume")
        .WithDetail({.reason = "BACKEND"});
  }
  std::string secret(kCheckpointSecretBytes, '\0');
  TANDEM_RETURN_IF_ERROR(Random(secret.data(), secret.size()));
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
  for (const uint64_t id : session->groups) {
    const auto found = core_.registry.groups.find(id);
    if (found == core_.registry.groups.end() || !found->second->Lives()) continue;
    const GroupRecord& group = *found->second;
    if (group.state() == GroupState::kAsleep && group.suspension->state() == SuspensionState::kAsleep)
      continue;
    return FailedPrecondition("group '" + group.name + "' is awake: suspend it before a checkpoint")
        .WithDetail({.reason = "NOT_SUSPENDED", .who = "group " + std::to_string(id)});
  }
  if (!session->channels.empty()) {
    return FailedPrecondition(
               "the session has channels to engines: a graph holds launches that engines would run")
        .WithDetail({.reason = "HAS_CHANNELS"});
  }
  session->checkpoint = {.secret = secret};
  core_.registry.Touch(*session);
  v1::BeginCheckpointReply reply;
  reply.set_secret(secret);
  return reply;
}

Status CheckpointService::LetGo(uint64_t session_id, const std::string& secret) {
  RegistryLock lock(core_.registry);
  const auto found = core_.registry.sessions.find(session_id);
  if (found == core_.registry.sessions.end()) return NotFound("no such session");
  SessionRecord& session = *found->second;
  if (!Same(session.checkpoint.secret, secret))
    return FailedPrecondition("this is not the secret of BeginCheckpoint")
        .WithDetail({.reason = "WRONG_SECRET"});
  session.checkpoint.since = Waiter::Clock::now();
  core_.registry.Touch(session);
  core_.LogOf(session.peer.uid, LogSeverity::kInfo,
              "session=" + std::to_string(session_id) + " waits for a restored process");
  return Status::Ok();
}

Status CheckpointService::CheckShown(const SessionRecord& session, const PeerIdentity& peer,
                                     const std::string& secret) const {
  if (peer.uid != session.peer.uid) {
    return Status(Code::kPermissionDenied, "session " + std::to_string(session.id) + " is another user's")
        .WithDetail({.reason = "OTHER_USER"});
  }
  const bool waits = session.checkpoint.since.has_value();
  if (!waits && session.checkpoint.secret.empty()) return NotCheckpointed(session.id);
  if (!Same(session.checkpoint.secret, secret)) return WrongSecret(session.id);
  const bool same = peer.pid == session.peer.pid && peer.start_ticks == session.peer.start_ticks;
  if (!waits && session.checkpoint.token.empty()) return NotCheckpointed(session.id);
  if (!waits && !same) {
    return FailedPrecondition("session " + std::to_string(session.id) +
                              " has been restored already, by pid " + std::to_string(session.peer.pid))
        .WithDetail({.reason = "RESTORED", .pid = session.peer.pid});
  }
  return Status::Ok();
}

Status CheckpointService::CheckGpus(const SessionRecord& session,
                                    const std::optional<std::set<int>>& gpus) const {
  for (const uint64_t id : session.groups) {
    const auto found = core_.registry.groups.find(id);
    if (found == core_.registry.groups.end() || !gpus.has_value()) continue;
    for (const MemberRecord& member : found->second->members) {
      if (member.session_id != session.id || member.left || gpus->contains(member.gpu)) continue;
      return Status(Code::kPermissionDenied,
                    "this process may not use the GPU of group '" + found->second->name + "' (allow)")
          .WithDetail({.reason = "OTHER_GPUS", .gpu = member.gpu});
    }
  }
  return Status::Ok();
}

Result<SessionRef> CheckpointService::Restore(const PeerIdentity& peer, const v1::RestoreRequest& request) {
  std::array<uint8_t, kTokenBytes> token{};
  TANDEM_RETURN_IF_ERROR(Random(token.data(), token.size()));
  Registry& registry = core_.registry;
  SessionRef session;
  {
    RegistryLock lock(registry);
    if (registry.stopping) return Unavailable("the daemon is stopping");
    const auto found = registry.sessions.find(request.session_id());
    if (found != registry.sessions.end()) session = found->second;
    for (const SessionRef& ended : registry.evicted) {
      if (ended->id == request.session_id()) session = ended;
    }
    // A process that was restored before has the token of then.
    if (session == nullptr ||
        !(Same(Bytes(session->token), request.token()) || Same(session->checkpoint.token, request.token()))) {
      return Unauthenticated("there is no session " + std::to_string(request.session_id()) +
                             " to restore: it has ended, or belongs to an earlier daemon")
          .WithDetail({.reason = "SESSION_LOST"});
    }
    if (session->ended) return session->end;
    TANDEM_RETURN_IF_ERROR(CheckShown(*session, peer, request.secret()));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::set<int>> gpus, core_.AllowedGpus(peer));
    TANDEM_RETURN_IF_ERROR(CheckGpus(*session, gpus));
    if (session->checkpoint.since.has_value()) {
      session->checkpoint.token = std::string(Bytes(session->token));
      session->checkpoint.since.reset();
      session->token = token;
      session->gpus = gpus;
      // Its uid is the same, and the account is kept by the job that it has attached from.
      session->peer.pid = peer.pid;
      session->peer.start_ticks = peer.start_ticks;
      session->peer.started = peer.started;
      for (const uint64_t id : session->groups) {
        const auto group = registry.groups.find(id);
        if (group == registry.groups.end()) continue;
        for (MemberRecord& member : group->second->members) {
          if (member.session_id == session->id) member.pid = peer.pid;
        }
        registry.Touch(*group->second);
      }
      registry.Touch(*session);
    }
  }
  core_.LogOf(peer.uid, LogSeverity::kInfo,
              "session=" + std::to_string(session->id) + " restored pid=" + std::to_string(peer.pid));
  return session;
}

Result<v1::TakeSharedReply> CheckpointService::TakeShared(const SessionRef& session,
                                                          const v1::TakeSharedRequest& request) {
  v1::TakeSharedReply reply;
  std::vector<SharedFd> fds;
  {
    RegistryLock lock(core_.registry);
    TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
    for (const uint64_t id : request.registration_ids()) {
      const auto found = session->registrations.find(id);
      if (found == session->registrations.end() || found->second.fds.size() != 1)
        return NotFound("the session has no registration " + std::to_string(id) + " of one descriptor");
      fds.push_back(found->second.fds[0]);
    }
    for (const uint64_t id : request.group_ids()) {
      int rank = 0;
      TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                              core_.registry.FindGroup(*session, id, &rank));
      if (group->client.page_fds.size() <= static_cast<size_t>(rank))
        return NotFound("group '" + group->name + "' has no client-placed plan");
      fds.push_back(group->client.page_fds[static_cast<size_t>(rank)]);
    }
    reply.set_transfer_id(core_.registry.next_id++);
  }
  TANDEM_RETURN_IF_ERROR(core_.SendDescriptors(session->id, reply.transfer_id(), fds));
  return reply;
}

}  // namespace tandem::daemon
