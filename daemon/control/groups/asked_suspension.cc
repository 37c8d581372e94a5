#include "daemon/control/groups/asked_suspension.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tandem::daemon {
namespace {

Status Withdrawn() {
  return Aborted("no operator asks this session to suspend its groups any more")
      .WithDetail({.reason = "WITHDRAWN"});
}

bool Sleeps(const GroupRecord& group) TANDEM_REQUIRES(registry_mutex) {
  return group.state() == GroupState::kAsleep && group.suspension != nullptr &&
         group.suspension->state() == SuspensionState::kAsleep;
}

}  // namespace

Result<AskedJob> AskedSuspension::JobOf(uint64_t session_id, const May& may) const {
  const Registry& registry = core_.registry;
  AskedJob job;
  std::vector<uint64_t> left = {session_id};
  while (!left.empty()) {
    const uint64_t id = left.back();
    left.pop_back();
    const auto found = registry.sessions.find(id);
    if (found == registry.sessions.end()) continue;
    // A caller hears nothing of others' sessions.
    if (!may(found->second->peer.uid)) {
      if (id == session_id) break;
      return Status(Code::kPermissionDenied,
                    "session " + std::to_string(session_id) + " shares a group with another user's session");
    }
    if (!job.sessions.insert(id).second) continue;
    for (const uint64_t group_id : found->second->groups) {
      const auto group = registry.groups.find(group_id);
      if (group == registry.groups.end() || !group->second->Lives()) continue;
      job.groups.insert(group_id);
      for (const MemberRecord& member : group->second->members) {
        if (!member.left) left.push_back(member.session_id);
      }
    }
  }
  if (job.sessions.empty()) return NotFound("no session " + std::to_string(session_id));
  if (!job.groups.empty()) return job;
  return FailedPrecondition("session " + std::to_string(session_id) + " has no group that could be suspended")
      .WithDetail({.reason = "NO_GROUP"});
}

std::string AskedSuspension::Named(const std::set<uint64_t>& sessions) const {
  std::string names;
  for (const uint64_t id : sessions) {
    names += (names.empty() ? "session " : ", session ") + std::to_string(id);
    const auto found = core_.registry.sessions.find(id);
    if (found == core_.registry.sessions.end()) continue;
    names += " (pid " + std::to_string(found->second->peer.pid) + ", '" + found->second->name + "')";
  }
  return names;
}

Status AskedSuspension::CheckOffered(const AskedJob& job) const {
  std::set<uint64_t> unwilling;
  for (const uint64_t id : job.sessions) {
    if (!core_.registry.sessions.at(id)->suspends) unwilling.insert(id);
  }
  if (unwilling.empty()) return Status::Ok();
  return FailedPrecondition("the job takes no requests to suspend: " + Named(unwilling) +
                            " has not called suspend_if_asked")
      .WithDetail({.reason = "NOT_OFFERED", .who = Named(unwilling)});
}

Status AskedSuspension::CheckAlive(const std::set<uint64_t>& groups) const {
  for (const uint64_t id : groups) {
    const auto found = core_.registry.groups.find(id);
    if (found == core_.registry.groups.end())
      return Unavailable("group " + std::to_string(id) + " has ended");
    const Status& why = found->second->lifecycle.why();
    if (!why.ok()) return why;
  }
  return Status::Ok();
}

bool AskedSuspension::AllSleep(const std::set<uint64_t>& groups) const {
  return std::all_of(groups.begin(), groups.end(), [this](uint64_t id) TANDEM_REQUIRES(registry_mutex) {
    const auto found = core_.registry.groups.find(id);
    return found != core_.registry.groups.end() && Sleeps(*found->second);
  });
}

void AskedSuspension::Tell(const std::set<uint64_t>& sessions, v1::Event::Kind kind, uint64_t request) {
  v1::Event event;
  event.set_kind(kind);
  event.set_rank(-1);
  event.set_request(request);
  for (const uint64_t id : sessions) {
    const auto found = core_.registry.sessions.find(id);
    if (found != core_.registry.sessions.end())
      found->second->PostEvent(event, core_.options.limits.events_per_session);
  }
}

Status AskedSuspension::LateStatus(const PendingSuspension& request) const {
  const auto late = [&](const Barrier& meeting) TANDEM_REQUIRES(registry_mutex) {
    std::set<uint64_t> sessions;
    for (const uint32_t slot : meeting.Missing()) sessions.insert(request.sessions[slot]);
    return Named(sessions);
  };
  std::string who, what = "did not give up its memory in time";
  if (!request.agreed.over()) {
    who = late(request.agreed);
    what = "did not answer in time";
  } else if (!request.arrived.over()) {
    who = late(request.arrived);
    what = "did not come to step " + std::to_string(request.step + 1) + " in time";
  } else {
    who = Named({request.sessions.begin(), request.sessions.end()});
  }
  return Status(Code::kDeadlineExceeded, "the job was not suspended: " + who + " " + what,
                {.reason = "SESSION_LATE", .who = who});
}

Result<std::shared_ptr<PendingSuspension>> AskedSuspension::RequestOf(const AskedJob& job,
                                                                      const Waiter& waiter, bool* made) {
  Registry& registry = core_.registry;
  for (const uint64_t id : job.sessions) {
    if (auto found = registry.sessions.at(id)->suspension) return found;
  }
  TANDEM_RETURN_IF_ERROR(CheckOffered(job));
  auto request =
      std::make_shared<PendingSuspension>(registry.next_id++, job.sessions, job.groups, waiter.deadline);
  for (const uint64_t id : job.sessions) registry.sessions.at(id)->suspension = request;
  Tell(job.sessions, v1::Event::SUSPEND_REQUESTED, request->id);
  *made = true;
  return request;
}

void AskedSuspension::Close(const std::shared_ptr<PendingSuspension>& request, const Status& why) {
  const std::set<uint64_t> sessions(request->sessions.begin(), request->sessions.end());
  if (!why.ok()) {
    request->Fail(why);
    // It may have put some groups to sleep.
    Tell(sessions, v1::Event::RESUME_REQUESTED, 0);
  }
  // Groups may sleep before all have met: their ranks have suspended them by themselves.
  request->agreed.End(Withdrawn());
  request->arrived.End(Withdrawn());
  for (const uint64_t id : sessions) {
    const auto found = core_.registry.sessions.find(id);
    if (found != core_.registry.sessions.end() && found->second->suspension == request)
      found->second->suspension.reset();
  }
}

Result<AskedJob> AskedSuspension::Suspend(uint64_t session_id, const May& may, const Waiter& waiter) {
  RegistryLock lock(core_.registry);
  TANDEM_ASSIGN_OR_RETURN(AskedJob job, JobOf(session_id, may));
  if (AllSleep(job.groups)) return job;
  bool made = false;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<PendingSuspension> request, RequestOf(job, waiter, &made));
  job = {{request->sessions.begin(), request->sessions.end()}, request->groups};
  const bool settled =
      waiter.Wait(lock, core_.registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
        return core_.registry.stopping || !request->failure.ok() || !CheckAlive(job.groups).ok() ||
               AllSleep(job.groups);
      });
  Status status = request->failure;
  if (status.ok()) status = CheckAlive(job.groups);
  if (status.ok() && core_.registry.stopping) status = Unavailable("the daemon is stopping");
  if (status.ok() && !settled)
    status = waiter.Cancelled() ? Status(Code::kCancelled, "the operator went away") : LateStatus(*request);
  if (made) Close(request, status);
  if (!status.ok()) return status;
  core_.Log(LogSeverity::kInfo, "an operator has suspended " + Named(job.sessions));
  return job;
}

Result<AskedJob> AskedSuspension::Resume(uint64_t session_id, const May& may, const Waiter& waiter) {
  RegistryLock lock(core_.registry);
  TANDEM_ASSIGN_OR_RETURN(AskedJob job, JobOf(session_id, may));
  for (const uint64_t id : job.sessions) {
    if (core_.registry.sessions.at(id)->suspension == nullptr) continue;
    return FailedPrecondition("the job is being suspended").WithDetail({.reason = "UNDER_WAY"});
  }
  std::erase_if(job.groups, [this](uint64_t id) TANDEM_REQUIRES(registry_mutex) {
    return core_.registry.groups.at(id)->state() != GroupState::kAsleep;
  });
  if (job.groups.empty()) return AskedJob{};
  for (const uint64_t id : job.groups) core_.registry.groups.at(id)->suspension->hindered = Status::Ok();
  Tell(job.sessions, v1::Event::RESUME_REQUESTED, 0);
  // Why the groups sleep on, once that is known; nothing while some still do.
  const auto outcome = [&]() TANDEM_REQUIRES(registry_mutex) -> std::optional<Status> {
    if (core_.registry.stopping) return Unavailable("the daemon is stopping");
    if (Status status = CheckAlive(job.groups); !status.ok()) return status;
    bool sleeps = false;
    for (const uint64_t id : job.groups) {
      const GroupRecord& group = *core_.registry.groups.at(id);
      if (group.state() != GroupState::kAsleep) continue;
      sleeps = true;
      if (!group.suspension->hindered.ok()) return group.suspension->hindered;
    }
    return sleeps ? std::nullopt : std::optional<Status>(Status::Ok());
  };
  (void)waiter.Wait(lock, core_.registry.engines_changed,
                    [&]() TANDEM_REQUIRES(registry_mutex) { return outcome().has_value(); });
  const Status late = DeadlineExceeded(Named(job.sessions) +
                                       " did not resume its groups in time; a job that has suspended them by "
                                       "itself resumes them by itself");
  TANDEM_RETURN_IF_ERROR(outcome().value_or(late));
  return job;
}

Result<v1::ServeSuspensionReply> AskedSuspension::Serve(const SessionRef& session,
                                                        const v1::ServeSuspensionRequest& request,
                                                        const Waiter& waiter) {
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
  if (request.phase() == v1::ServeSuspensionRequest::OFFER) {
    session->suspends = true;
    core_.registry.Touch(*session);
    return v1::ServeSuspensionReply{};
  }
  const bool agrees = request.phase() == v1::ServeSuspensionRequest::AGREE;
  if (!agrees && request.phase() != v1::ServeSuspensionRequest::ARRIVED)
    return InvalidArgument("a request to suspend has no such phase").WithDetail({.field = "phase"});
  const std::shared_ptr<PendingSuspension> pending = session->suspension;
  if (pending == nullptr || pending->id != request.request()) return Withdrawn();
  const size_t slot = *pending->SlotOf(session->id);
  Barrier& meeting = agrees ? pending->agreed : pending->arrived;
  if (!agrees && !pending->agreed.over())
    return Aborted("the sessions have not agreed on a step").WithDetail({.reason = "WRONG_STEP"});
  if (!meeting.over()) {
    if (agrees) pending->step = std::max(pending->step, request.step());
    meeting.Take(slot, pending->deadline);
    if (meeting.Complete()) meeting.End(Status::Ok());
  }
  // The operator's call ends it at the deadline.
  const Waiter until{Waiter::Clock::time_point::max(), waiter.cancelled};
  if (!meeting.AwaitEnd(lock, slot, until)) {
    pending->Fail(Aborted(Named({session->id}) + " has broken off its answer"));
    core_.registry.engines_changed.notify_all();
    return Status(Code::kCancelled, "the caller went away");
  }
  if (!meeting.verdict().ok()) return Withdrawn();
  v1::ServeSuspensionReply reply;
  reply.set_step(pending->step + 1);
  return reply;
}

}  // namespace tandem::daemon
