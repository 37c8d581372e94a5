#include "daemon/control/sessions/session_service.h"

#include <sys/random.h>

#include <fstream>
#include <utility>
#include <vector>

#include "common/descriptor_reserve.h"
#include "common/log_field.h"
#include "common/protocol.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/validate.h"
#include "daemon/control/records/pending_suspension.h"

namespace tandem::daemon {
namespace {

// Evicted sessions whose tokens are known still.
constexpr size_t kMaxEvicted = 256;

// The first line of a file of /proc; empty if it cannot be read (another pid namespace).
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return log::OneLine(line.substr(0, 256));  // a process chooses its name's bytes
}

uint64_t DescriptorsOf(const SessionRecord& session) TANDEM_REQUIRES(registry_mutex) {
  uint64_t count = 1;  // the lease
  for (const auto& [id, registration] : session.registrations) count += registration.fds.size();
  return count + session.channels.size();
}

bool SameToken(const SessionRecord& session, std::string_view token) {
  uint8_t difference = 0;
  for (size_t i = 0; i < kTokenBytes; ++i) difference |= session.token[i] ^ static_cast<uint8_t>(token[i]);
  return difference == 0;
}

void FillLimits(const ControlLimits& limits, v1::AttachReply* reply) {
  auto& reported = *reply->mutable_limits();
  reported["groups"] = static_cast<int64_t>(limits.groups);
  reported["plans"] = static_cast<int64_t>(limits.plans);
  reported["tensors"] = static_cast<int64_t>(limits.tensors);
  reported["segment_bytes"] = static_cast<int64_t>(limits.segment_bytes);
  reported["registered_bytes"] = static_cast<int64_t>(limits.registered_bytes);
  reported["channels"] = static_cast<int64_t>(limits.channels_per_session);
  reported["transfer_descriptors"] = kMaxTransferFds;
}

}  // namespace

Result<v1::AttachReply> SessionService::Attach(const PeerIdentity& peer, const v1::AttachRequest& request) {
  TANDEM_RETURN_IF_ERROR(ValidateAttach(request));
  const uint32_t protocol = CommonProtocol(request.protocol_min(), request.protocol_max());
  if (protocol == 0) {
    const bool newer = request.protocol_min() > kProtocol;
    return FailedPrecondition("the client speaks protocols " + std::to_string(request.protocol_min()) +
                              " to " + std::to_string(request.protocol_max()) + ", this daemon speaks " +
                              std::to_string(kOldestProtocol) + " to " + std::to_string(kProtocol) + ": " +
                              (newer ? "upgrade the daemon" : "the client is too old, upgrade it"))
        .WithDetail({.reason = "PROTOCOL", .who = {}, .field = newer ? "protocol_min" : "protocol_max"});
  }
  const ControlOptions& options = core_.options;
  auto session = std::make_shared<SessionRecord>(options.limits.transfers_per_session);
  if (::getrandom(session->token.data(), session->token.size(), 0) !=
      static_cast<ssize_t>(session->token.size())) {
    return Internal("no random numbers for a token");
  }
  session->peer = peer;
  session->protocol = protocol;
  session->owner = OwnerOf(peer.cgroup);
  session->name = request.name();
  session->mps = {.directory = request.mps_pipe_directory(),
                  .answers = request.mps_answers(),
                  .device = request.mps_device(),
                  .inode = request.mps_inode()};
  session->device_max_connections = request.device_max_connections();
  session->command = FirstLine("/proc/" + std::to_string(peer.pid) + "/comm");
  Registry& registry = core_.registry;
  {
    RegistryLock lock(registry);
    if (registry.stopping) return Unavailable("the daemon is stopping");
    const ControlLimits& limits = options.limits;
    TANDEM_RETURN_IF_ERROR(registry.Admits("sessions"));
    TANDEM_ASSIGN_OR_RETURN(session->gpus, core_.AllowedGpus(peer));
    TANDEM_RETURN_IF_ERROR(CheckLimit("sessions", "the node", limits.sessions, registry.sessions.size(), 1));
    Ledger& ledger = registry.ledger;
    TANDEM_RETURN_IF_ERROR(ledger.Check(session->payer(), Resource::kDescriptors, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kSessions, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kDescriptors, 1));
    session->id = registry.next_id++;
    registry.sessions[session->id] = session;
    registry.Touch(*session);
    core_.KeepAnEngine(*session);
    ++registry.counters.sessions_total;
  }
  core_.LogOf(peer.uid, LogSeverity::kInfo,
              "session=" + std::to_string(session->id) + " attached pid=" + std::to_string(peer.pid) +
                  " uid=" + std::to_string(peer.uid) +
                  (session->owner.empty() ? std::string() : " owner=" + log::FieldValue(session->owner)) +
                  " name=" + log::FieldValue(session->name));
  return ReplyTo(*session);
}

v1::AttachReply SessionService::ReplyTo(const SessionRecord& session) const {
  const ControlOptions& options = core_.options;
  v1::AttachReply reply;
  {
    RegistryLock lock(core_.registry);
    FillLimits(core_.registry.ledger.LimitsOf(session.payer()), &reply);
  }
  reply.set_token(session.token.data(), session.token.size());
  reply.set_session_id(session.id);
  reply.set_protocol(session.protocol);
  reply.set_daemon_version(options.daemon_version);
  reply.set_instance_id(instance_id_);
  reply.set_backend(options.backend);
  reply.set_grpc_socket(options.grpc_socket);
  for (int i = 0; i < options.topology.size(); ++i) {
    if (session.gpus.has_value() && !session.gpus->contains(i)) continue;
    const GpuInfo& info = options.topology.gpus[static_cast<size_t>(i)];
    v1::Gpu* gpu = reply.add_gpus();
    gpu->set_uuid(info.uuid);
    gpu->set_model(info.model);
    gpu->set_index(i);
    gpu->set_memory_bytes(info.memory_bytes);
  }
  reply.set_hardware_queues(options.hardware_queues);
  reply.set_restart_grace_ms(static_cast<uint64_t>(options.restart_grace.count()));
  return reply;
}

Result<v1::AttachReply> SessionService::Reattach(const PeerIdentity& peer,
                                                 const v1::ReattachRequest& request) {
  const Status lost = Unauthenticated("this process has no session " + std::to_string(request.session_id()) +
                                      " to resume: attach again")
                          .WithDetail({.reason = "SESSION_LOST", .who = {}, .field = {}});
  if (request.token().size() != kTokenBytes || core_.options.restart_grace.count() == 0) return lost;
  SessionRef session;
  {
    RegistryLock lock(core_.registry);
    if (core_.registry.stopping) return Unavailable("the daemon is stopping");
    const auto found = core_.registry.sessions.find(request.session_id());
    if (found == core_.registry.sessions.end() || !SameToken(*found->second, request.token())) return lost;
    session = found->second;
    const PeerIdentity& known = session->peer;
    // A session that is back already may not have got the answer.
    if (peer.uid != known.uid || peer.pid != known.pid || peer.start_ticks != known.start_ticks) return lost;
    session->away = false;
    // It has not heard that its session waits: the session is not left to another process.
    if (session->checkpoint.since.has_value()) {
      session->checkpoint = {};
      core_.registry.Touch(*session);
    }
  }
  core_.LogOf(peer.uid, LogSeverity::kInfo,
              "session=" + std::to_string(session->id) + " resumed pid=" + std::to_string(peer.pid));
  return ReplyTo(*session);
}

std::vector<std::pair<uint64_t, PeerIdentity>> SessionService::AwaySessions() {
  std::vector<std::pair<uint64_t, PeerIdentity>> away;
  RegistryLock lock(core_.registry);
  for (const auto& [id, session] : core_.registry.sessions) {
    if (session->away) away.emplace_back(id, session->peer);
  }
  return away;
}

Result<SessionRef> SessionService::Authenticate(std::string_view token) {
  if (token.empty()) {
    return Unauthenticated("the call carries no token")
        .WithDetail({.reason = "NO_TOKEN", .who = {}, .field = {}});
  }
  if (token.size() != kTokenBytes) {
    return Unauthenticated("the token is malformed")
        .WithDetail({.reason = "BAD_TOKEN", .who = {}, .field = {}});
  }
  RegistryLock lock(core_.registry);
  SessionRef found;
  // Every session is compared in full, so that the time says nothing about a token's prefix.
  for (const auto& [id, session] : core_.registry.sessions) {
    if (SameToken(*session, token)) found = session;
  }
  if (found && found->checkpoint.since.has_value()) {
    return Unauthenticated("session " + std::to_string(found->id) + " waits for a restored process")
        .WithDetail({.reason = "CHECKPOINTED"});
  }
  if (found && found->away) {
    return Unavailable("tandemd has restarted, and the session's lease is not back yet")
        .WithDetail({.reason = "RESTARTING", .who = {}, .field = {}});
  }
  if (found) return found;
  for (const auto& session : core_.registry.evicted) {
    if (SameToken(*session, token)) found = session;
  }
  if (found) return found->end;
  return Unauthenticated(
             "no session has this token: it has ended, or belongs to an earlier daemon; attach again")
      .WithDetail({.reason = "SESSION_LOST", .who = {}, .field = {}});
}

Status SessionService::AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds) {
  SessionRef session;
  Status quota;
  {
    RegistryLock lock(core_.registry);
    const auto it = core_.registry.sessions.find(session_id);
    if (it == core_.registry.sessions.end()) return NotFound("no such session");
    session = it->second;
    // Descriptors that nobody has claimed yet count too: without any left, the daemon could serve nobody.
    Ledger::Unbooked unclaimed;
    for (const auto& [id, other] : core_.registry.sessions) {
      const uint64_t count = other->transfers.descriptors();
      if (other->peer.uid == session->peer.uid) unclaimed.of_uid += count;
      if (other->owner == session->owner) unclaimed.of_cgroup += count;
    }
    quota = core_.registry.ledger.Check(session->payer(), Resource::kDescriptors, fds.size(), unclaimed);
  }
  // tandemd keeps a reserve of descriptors beyond all quotas.
  for (size_t i = 0; quota.ok() && i < fds.size(); ++i) {
    if (LeavesReserve(fds[i].get(), DescriptorUse::kClient)) continue;
    quota = TooFewDescriptors();
  }
  if (!quota.ok()) {
    session->transfers.Refuse(part.transfer_id(), quota);
    return quota;
  }
  return session->transfers.Add(part.transfer_id(), part.index(), part.total(), std::move(fds));
}

std::set<uint64_t> SessionService::Ids() {
  std::set<uint64_t> ids;
  RegistryLock lock(core_.registry);
  for (const auto& [id, session] : core_.registry.sessions) ids.insert(id);
  return ids;
}

bool SessionService::ReapOrphans() {
  std::vector<SessionRef> sessions;
  {
    RegistryLock lock(core_.registry);
    for (const auto& [id, session] : core_.registry.sessions) sessions.push_back(session);
  }
  bool left = false;
  for (const SessionRef& session : sessions)
    left |= session->transfers.ReapOrphans(core_.options.orphan_deadline);
  return left;
}

Result<std::shared_ptr<void>> SessionService::Admit(const SessionRef& session) {
  const ControlLimits& limits = core_.options.limits;
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(CheckLimit("calls", "the session", limits.calls_per_session, session->calls, 1));
  if (session->calls >= kOwnCalls) {
    Ledger& ledger = core_.registry.ledger;
    TANDEM_RETURN_IF_ERROR(CheckLimit("calls per node", "the node", 2 * limits.calls_per_uid,
                                      ledger.Total(Resource::kCalls), 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kCalls, 1));
  }
  ++session->calls;
  return std::shared_ptr<void>(nullptr, [this, session](void*) {
    RegistryLock again(core_.registry);
    if (--session->calls >= kOwnCalls) core_.registry.ledger.Refund(session->payer(), Resource::kCalls, 1);
  });
}

Status SessionService::LeaveGroups(const SessionRef& session, const Waiter& waiter) {
  std::set<uint64_t> groups;
  {
    RegistryLock lock(core_.registry);
    TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
    groups = session->groups;
  }
  for (const uint64_t group : groups) {
    Status left = of_.groups.Leave(session, group, waiter);
    if (!left.ok() && left.code() != Code::kNotFound) return left;
  }
  return Status::Ok();
}

Status SessionService::Detach(const SessionRef& session, const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(LeaveGroups(session, waiter));
  EndSession(session->id, End::kDetached, "has left: it detached");
  return Status::Ok();
}

void SessionService::Lost(uint64_t session_id, const std::string& why) {
  EndSession(session_id, End::kLost, "was lost: " + why);
}

void SessionService::LeaseClosed(uint64_t session_id) {
  SessionRef session;
  {
    RegistryLock lock(core_.registry);
    const auto it = core_.registry.sessions.find(session_id);
    if (it == core_.registry.sessions.end()) return;
    session = it->second;
  }
  departures_.Post([this, session] {
    const Status left = LeaveGroups(session, Waiter::For(core_.options.departure_deadline));
    if (left.ok()) {
      EndSession(session->id, End::kClosed, "has left: it closed its lease");
    } else {
      EndSession(session->id, End::kLost, "was lost: it closed its lease, and " + left.message());
    }
  });
}

Status SessionService::Evict(uint64_t session_id, const std::string& by) {
  {
    RegistryLock lock(core_.registry);
    if (!core_.registry.sessions.contains(session_id))
      return NotFound("no session " + std::to_string(session_id));
  }
  EndSession(session_id, End::kEvicted, "was evicted by " + by);
  return Status::Ok();
}

void SessionService::EndLongCheckpoints() {
  const std::chrono::milliseconds limit = core_.options.suspension_limit;
  if (limit.count() == 0) return;
  std::vector<uint64_t> late;
  {
    RegistryLock lock(core_.registry);
    for (const auto& [id, session] : core_.registry.sessions) {
      const auto since = session->checkpoint.since;
      if (since.has_value() && Waiter::Clock::now() - *since >= limit) late.push_back(id);
    }
  }
  for (const uint64_t id : late) {
    EndSession(id, End::kExpired,
               "was lost: no process restored it within " + std::to_string(limit.count()) +
                   " ms (suspension_limit_ms)");
  }
}

void SessionService::FreeAllOf(SessionRecord& session) {
  Ledger& ledger = core_.registry.ledger;
  ledger.Refund(session.payer(), Resource::kDescriptors, DescriptorsOf(session));
  of_.channels.CloseAllOf(session);
  of_.registrations.RemoveAllOf(session);
  of_.tensors.FreeAllOf(session);
  of_.launches.ForgetAllOf(session);
  core_.registry.counters.events_dropped_total += std::exchange(session.events_dropped, 0);
  session.events_changed.notify_all();
  core_.registry.EndUses(session);
  ledger.Refund(session.payer(), Resource::kSessions, 1);
}

void SessionService::EndMemberships(SessionRecord& session, End end, const std::string& how) {
  const bool clean = end == End::kDetached || end == End::kClosed;
  of_.joins.EndJoinsOf(session, how);
  const std::set<uint64_t> groups = session.groups;
  for (const uint64_t id : groups) {
    const auto found = core_.registry.groups.find(id);
    if (found == core_.registry.groups.end()) continue;
    const std::shared_ptr<GroupRecord> group = found->second;
    for (size_t r = 0; r < group->members.size(); ++r) {
      const MemberRecord& member = group->members[r];
      if (member.session_id != session.id || member.left) continue;
      const int rank = static_cast<int>(r);
      if (!clean) {
        of_.groups.Break(*group,
                         Unavailable("rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) +
                                     ") of group '" + group->name + "' " + how)
                             .WithDetail(BlameRank("RANK_LOST", rank, {}, member.pid)),
                         rank);
      }
      of_.groups.RemoveMember(group, rank, !clean);
    }
  }
}

void SessionService::EndSession(uint64_t session_id, End end, const std::string& how) {
  Registry& registry = core_.registry;
  SessionRef session;
  Status reported;
  {
    RegistryLock lock(registry);
    const auto it = registry.sessions.find(session_id);
    if (it == registry.sessions.end()) return;
    session = it->second;
    registry.sessions.erase(it);
    registry.Touch(*session);
    session->ended = true;
    const char* reason = end == End::kEvicted   ? "EVICTED"
                         : end == End::kExpired ? "SUSPENSION_LIMIT"
                                                : "SESSION_LOST";
    session->end =
        Unauthenticated("the session " + how)
            .WithDetail({.reason = reason, .who = "session " + std::to_string(session_id), .field = {}});
    if (end == End::kLost || end == End::kExpired) ++registry.counters.sessions_lost_total;
    if (end == End::kEvicted) ++registry.counters.sessions_evicted_total;
    if (end == End::kEvicted || end == End::kExpired) {
      registry.evicted.push_back(session);
      if (registry.evicted.size() > kMaxEvicted) registry.evicted.pop_front();
      reported = Unavailable(session->end.message()).WithDetail(session->end.detail());
    }
    EndMemberships(*session, end, how);
    if (session->suspension != nullptr) {
      session->suspension->Fail(Unavailable("the job was not suspended: session " +
                                            std::to_string(session_id) + " (pid " +
                                            std::to_string(session->peer.pid) + ") " + how));
      session->suspension.reset();
    }
    registry.engines_changed.notify_all();  // operators wait for what becomes of jobs
    FreeAllOf(*session);
  }
  session->transfers.Close();
  core_.CloseLease(session_id, reported);
  const bool clean = end == End::kDetached || end == End::kClosed;
  const LogSeverity severity = clean ? LogSeverity::kInfo : LogSeverity::kWarning;
  const std::string text = "session=" + std::to_string(session_id) + " " + how;
  if (end == End::kEvicted) {
    core_.Log(severity, text);  // an operator's act
  } else {
    core_.LogOf(session->peer.uid, severity, text);
  }
}

}  // namespace tandem::daemon
