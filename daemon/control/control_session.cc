// Sessions: attach, authentication, events, and the ways in which a session ends.
#include <sys/random.h>

#include <cstdio>
#include <fstream>

#include "daemon/control/background_worker.h"
#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"

namespace tandem::daemon {
namespace {

std::string RandomHex(size_t bytes) {
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) {
    uint8_t byte = 0;
    if (::getrandom(&byte, 1, 0) != 1) byte = static_cast<uint8_t>(i);
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  return hex;
}

// The first line of a file of /proc; empty if it cannot be read (another pid namespace).
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.substr(0, 256);
}

uint64_t DescriptorsOf(const Session& session) {
  uint64_t count = 1;  // the lease
  for (const auto& [id, registration] : session.registrations) count += registration.fds.size();
  return count + session.channels.size();
}

}  // namespace

Control::Control(ControlOptions options, Engines& engines)
    : options_(std::move(options)),
      engines_(engines),
      instance_id_(RandomHex(8)),
      registry_(std::make_unique<Registry>(options_.limits)),
      background_(std::make_unique<BackgroundWorker>()) {
  registry_->engine_generation.resize(static_cast<size_t>(engines_.count()));
  for (int gpu = 0; gpu < engines_.count(); ++gpu) {
    registry_->mailboxes.push_back(std::make_unique<EngineMailbox>(gpu, engines_));
  }
  for (int gpu = 0; gpu < engines_.count(); ++gpu) {
    const EngineStatus status = engines_.StatusOf(gpu);
    if (status.state == EngineState::kReady) OnEngineUp(gpu, status.generation);
  }
}

Control::~Control() {
  Stop();
  background_.reset();
  registry_->mailboxes.clear();
}

void Control::SetLeasePort(LeasePort* port) { lease_port_ = port; }

void Control::Log(LogSeverity severity, const std::string& text) const {
  if (options_.log) options_.log(severity, text);
}

Waiter Control::WaiterFor(uint64_t deadline_ms, std::function<bool()> cancelled) const {
  const auto limit = static_cast<uint64_t>(options_.maximal_deadline.count());
  const auto time =
      deadline_ms == 0 ? options_.default_deadline : std::chrono::milliseconds(std::min(deadline_ms, limit));
  Waiter waiter = Waiter::For(time);
  waiter.cancelled = std::move(cancelled);
  return waiter;
}

Result<v1::AttachReply> Control::Attach(const PeerIdentity& peer, const v1::AttachRequest& request) {
  TANDEM_RETURN_IF_ERROR(ValidateAttach(request));
  if (request.protocol_min() > kProtocol || request.protocol_max() < kProtocol) {
    return Status(Code::kFailedPrecondition,
                  "the client speaks protocols " + std::to_string(request.protocol_min()) + " to " +
                      std::to_string(request.protocol_max()) + ", this daemon speaks " +
                      std::to_string(kProtocol),
                  {.reason = "PROTOCOL", .who = {}, .field = "protocol_max"});
  }
  auto session = std::make_shared<Session>(options_.limits.transfers_per_session);
  if (::getrandom(session->token.data(), session->token.size(), 0) !=
      static_cast<ssize_t>(session->token.size())) {
    return Internal("no random numbers for a token");
  }
  session->peer = peer;
  session->name = request.name();
  session->mps = {.directory = request.mps_pipe_directory(),
                  .answers = request.mps_answers(),
                  .device = request.mps_device(),
                  .inode = request.mps_inode()};
  session->device_max_connections = request.device_max_connections();
  session->command = FirstLine("/proc/" + std::to_string(peer.pid) + "/comm");
  const ControlLimits& limits = options_.limits;
  v1::AttachReply reply;
  {
    Lock lock(registry_->mutex);
    if (registry_->stopping) return Unavailable("the daemon is stopping");
    if (registry_->draining) {
      return Unavailable("the daemon is draining: no new sessions")
          .WithDetail({.reason = "DRAINING", .who = {}, .field = {}});
    }
    TANDEM_RETURN_IF_ERROR(
        CheckLimit("sessions", "the node", limits.sessions, registry_->sessions.size(), 1));
    Ledger& ledger = registry_->ledger;
    TANDEM_RETURN_IF_ERROR(ledger.Check(session->payer(), Resource::kDescriptors, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kSessions, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kDescriptors, 1));
    session->id = registry_->next_id++;
    registry_->sessions[session->id] = session;
    ++registry_->sessions_total;
  }
  reply.set_token(session->token.data(), session->token.size());
  reply.set_session_id(session->id);
  reply.set_protocol(kProtocol);
  reply.set_daemon_version(options_.daemon_version);
  reply.set_instance_id(instance_id_);
  reply.set_backend(options_.backend);
  reply.set_grpc_socket(options_.grpc_socket);
  for (int i = 0; i < options_.topology.size(); ++i) {
    const GpuInfo& info = options_.topology.gpus[static_cast<size_t>(i)];
    v1::Gpu* gpu = reply.add_gpus();
    gpu->set_uuid(info.uuid);
    gpu->set_model(info.model);
    gpu->set_index(i);
    gpu->set_memory_bytes(info.memory_bytes);
  }
  reply.set_hardware_queues(options_.hardware_queues);
  auto& told = *reply.mutable_limits();
  told["groups"] = static_cast<int64_t>(limits.groups);
  told["plans"] = static_cast<int64_t>(limits.plans);
  told["tensors"] = static_cast<int64_t>(limits.tensors);
  told["segment_bytes"] = static_cast<int64_t>(limits.segment_bytes);
  told["registered_bytes"] = static_cast<int64_t>(limits.registered_bytes);
  told["channels"] = static_cast<int64_t>(limits.channels_per_session);
  told["transfer_descriptors"] = kMaxTransferFds;
  Log(LogSeverity::kInfo, "session=" + std::to_string(session->id) +
                              " attached pid=" + std::to_string(peer.pid) +
                              " uid=" + std::to_string(peer.uid) + " name=" + session->name);
  return reply;
}

Result<SessionRef> Control::Authenticate(std::string_view token) {
  if (token.empty()) {
    return Unauthenticated("the call carries no token")
        .WithDetail({.reason = "NO_TOKEN", .who = {}, .field = {}});
  }
  if (token.size() != kTokenBytes) {
    return Unauthenticated("the token is malformed")
        .WithDetail({.reason = "BAD_TOKEN", .who = {}, .field = {}});
  }
  Lock lock(registry_->mutex);
  SessionRef found;
  // Every session is compared in full, so that the time says nothing about a token's prefix.
  for (const auto& [id, session] : registry_->sessions) {
    uint8_t difference = 0;
    for (size_t i = 0; i < kTokenBytes; ++i) difference |= session->token[i] ^ static_cast<uint8_t>(token[i]);
    if (difference == 0) found = session;
  }
  if (!found) {
    return Unauthenticated(
               "no session has this token: it has ended, or belongs to an earlier daemon; attach again")
        .WithDetail({.reason = "SESSION_LOST", .who = {}, .field = {}});
  }
  return found;
}

Status Control::SessionAlive(const Session& session) const {
  if (registry_->stopping) return Unavailable("the daemon is stopping");
  if (session.ended) {
    return Unauthenticated("the session has ended")
        .WithDetail({.reason = "SESSION_LOST", .who = {}, .field = {}});
  }
  return Status::Ok();
}

Status Control::LetGoLocked(const Status& answer) const {
  if (answer.code() == Code::kDeadlineExceeded) return answer;
  return !answer.ok() && registry_->stopping ? Unavailable("the daemon is stopping") : Status::Ok();
}

Status Control::AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds) {
  SessionRef session;
  Status quota;
  {
    Lock lock(registry_->mutex);
    auto it = registry_->sessions.find(session_id);
    if (it == registry_->sessions.end()) return NotFound("no such session");
    session = it->second;
    // What nobody has claimed yet counts too: without descriptors left, the daemon could serve nobody.
    Ledger::Unbooked unclaimed;
    for (const auto& [id, other] : registry_->sessions) {
      const uint64_t count = other->transfers.descriptors();
      if (other->peer.uid == session->peer.uid) unclaimed.of_uid += count;
      if (other->peer.cgroup == session->peer.cgroup) unclaimed.of_cgroup += count;
    }
    quota = registry_->ledger.Check(session->payer(), Resource::kDescriptors, fds.size(), unclaimed);
  }
  if (!quota.ok()) {
    session->transfers.Refuse(part.transfer_id(), quota);
    return quota;
  }
  return session->transfers.Add(part.transfer_id(), part.index(), part.total(), std::move(fds));
}

bool Control::ReapOrphans() {
  std::vector<SessionRef> sessions;
  {
    Lock lock(registry_->mutex);
    for (const auto& [id, session] : registry_->sessions) sessions.push_back(session);
  }
  bool left = false;
  for (const SessionRef& session : sessions) left |= session->transfers.ReapOrphans(options_.orphan_deadline);
  return left;
}

Result<std::shared_ptr<Group>> Control::FindGroupLocked(const Session& session, uint64_t group_id,
                                                        int* rank) {
  auto it = registry_->groups.find(group_id);
  if (it != registry_->groups.end()) {
    for (size_t r = 0; r < it->second->members.size(); ++r) {
      const Member& member = it->second->members[r];
      if (member.session_id == session.id && !member.left && it->second->state != GroupState::kJoining) {
        *rank = static_cast<int>(r);
        return it->second;
      }
    }
  }
  return NotFound("no group " + std::to_string(group_id) + " in this session");
}

void Control::PostEventLocked(Session& session, v1::Event event) {
  if (session.events.size() >= options_.limits.events_per_session) session.events.pop_front();
  session.events.push_back(std::move(event));
  session.events_changed.notify_all();
}

Result<std::shared_ptr<void>> Control::Admit(const SessionRef& session) {
  const ControlLimits& limits = options_.limits;
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(CheckLimit("calls", "the session", limits.calls_per_session, session->calls, 1));
  if (session->calls >= kOwnCalls) {
    Ledger& ledger = registry_->ledger;
    TANDEM_RETURN_IF_ERROR(CheckLimit("calls per node", "the node", 2 * limits.calls_per_uid,
                                      ledger.Total(Resource::kCalls), 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(session->payer(), Resource::kCalls, 1));
  }
  ++session->calls;
  return std::shared_ptr<void>(nullptr, [this, session](void*) {
    Lock again(registry_->mutex);
    if (--session->calls >= kOwnCalls) registry_->ledger.Refund(session->payer(), Resource::kCalls, 1);
  });
}

uint64_t Control::OpenEvents(const SessionRef& session) {
  Lock lock(registry_->mutex);
  session->events_changed.notify_all();
  return ++session->event_streams;
}

Result<std::optional<v1::Event>> Control::NextEvent(const SessionRef& session, uint64_t stream,
                                                    const Waiter& waiter) {
  Lock lock(registry_->mutex);
  const bool ready = waiter.Wait(lock, session->events_changed, [&] {
    return !session->events.empty() || session->ended || registry_->stopping ||
           session->event_streams != stream;
  });
  if (session->event_streams != stream)
    return Status(Code::kAborted, "a newer stream of the session's events is open");
  if (!session->events.empty()) {
    v1::Event event = std::move(session->events.front());
    session->events.pop_front();
    return std::optional<v1::Event>(std::move(event));
  }
  if (ready) return Unavailable(session->ended ? "the session has ended" : "the daemon is stopping");
  return std::optional<v1::Event>();
}

void Control::SessionLost(uint64_t session_id, const std::string& why) { EndSession(session_id, false, why); }

Status Control::Evict(uint64_t session_id) {
  {
    Lock lock(registry_->mutex);
    if (!registry_->sessions.contains(session_id)) {
      return NotFound("no session " + std::to_string(session_id));
    }
  }
  EndSession(session_id, false, "evicted by an operator");
  return Status::Ok();
}

Status Control::Detach(const SessionRef& session, const Waiter& waiter) {
  std::set<uint64_t> groups;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    groups = session->groups;
  }
  for (uint64_t group : groups) {
    Status left = LeaveGroup(session, group, waiter);
    if (!left.ok() && left.code() != Code::kNotFound) return left;
  }
  EndSession(session->id, true, "detached");
  return Status::Ok();
}

void Control::EndSessionPartsLocked(Session& session) {
  Ledger& ledger = registry_->ledger;
  ledger.Refund(session.payer(), Resource::kDescriptors, DescriptorsOf(session));
  for (const auto& [id, channel] : session.channels) {
    engine::v1::Command command;
    command.mutable_close_channel()->set_channel_id(id);
    registry_->mailboxes[static_cast<size_t>(channel.gpu)]->Post(std::move(command));
  }
  session.channels.clear();
  for (const auto& [id, registration] : session.registrations) {
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(id);
    registry_->mailboxes[static_cast<size_t>(registration.gpu)]->Post(std::move(command));
    ledger.Refund(session.payer(), Resource::kRegisteredBytes, registration.bytes);
    ledger.Refund(session.payer(), Resource::kTensors, 1);
  }
  session.registrations.clear();
  while (!session.tensors.empty()) FreeTensorLocked(session, session.tensors.begin()->first);
  for (const auto& [id, launch] : session.launches) registry_->launches.erase(id);
  session.launches_changed.notify_all();
  session.events_changed.notify_all();
  ledger.Refund(session.payer(), Resource::kSessions, 1);
}

void Control::EndSession(uint64_t session_id, bool clean, const std::string& why) {
  SessionRef session;
  {
    Lock lock(registry_->mutex);
    auto it = registry_->sessions.find(session_id);
    if (it == registry_->sessions.end()) return;
    session = it->second;
    registry_->sessions.erase(it);
    session->ended = true;
    if (!clean) ++registry_->sessions_lost_total;
    FailJoinsOfLocked(*session, why);
    const std::set<uint64_t> groups = session->groups;
    for (uint64_t id : groups) {
      auto group = registry_->groups.find(id);
      if (group == registry_->groups.end()) continue;
      const std::shared_ptr<Group> kept = group->second;
      for (size_t rank = 0; rank < kept->members.size(); ++rank) {
        Member& member = kept->members[rank];
        if (member.session_id != session_id || member.left) continue;
        if (!clean) {
          const std::string who =
              "rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) + ")";
          BreakGroupLocked(
              *kept,
              Status(Code::kUnavailable, who + " of group '" + kept->name + "' was lost: " + why,
                     {.reason = "RANK_LOST", .who = "rank " + std::to_string(rank), .field = {}}),
              static_cast<int>(rank));
        }
        MemberLeftLocked(kept, static_cast<int>(rank), !clean);
      }
    }
    EndSessionPartsLocked(*session);
  }
  session->transfers.Close();
  if (lease_port_ != nullptr) lease_port_->Close(session_id);
  Log(clean ? LogSeverity::kInfo : LogSeverity::kWarning,
      "session=" + std::to_string(session_id) + (clean ? " ended: " : " lost: ") + why);
}

void Control::Stop() {
  Lock lock(registry_->mutex);
  if (registry_->stopping) return;
  registry_->stopping = true;
  const Status why = Unavailable("the daemon is stopping");
  for (const auto& [id, session] : registry_->sessions) {
    session->events_changed.notify_all();
    session->launches_changed.notify_all();
  }
  for (const auto& [id, group] : registry_->groups) {
    FailMeetingsLocked(*group, why);
    group->changed.notify_all();
  }
  for (auto& [scope, entry] : registry_->names) {
    if (entry.joining && entry.joining->phase == Meeting::Phase::kWaiting) {
      entry.joining->phase = Meeting::Phase::kDone;
      entry.joining->status = why;
      entry.joining->changed.notify_all();
      entry.joining.reset();
    }
    entry.freed->notify_all();
  }
  registry_->engines_changed.notify_all();
}

}  // namespace tandem::daemon
