#include "daemon/control/groups/suspension_service.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "daemon/control/base/blame.h"
#include "daemon/control/records/pending_suspension.h"

namespace tandem::daemon {
namespace {

Status NotThere(const GroupRecord& group, const char* step) TANDEM_REQUIRES(registry_mutex) {
  const std::string state = group.suspension ? SuspensionStateName(group.suspension->state()) : "awake";
  return Aborted(std::string(step) + " does not follow: group '" + group.name + "' is " + state)
      .WithDetail({.reason = "WRONG_STEP", .who = {}, .field = "step"});
}

}  // namespace

Result<v1::SuspendGroupReply> SuspensionService::Step(const SessionRef& session,
                                                      const v1::SuspendGroupRequest& request,
                                                      const Waiter& waiter) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          registry.FindGroup(*session, request.group_id(), &rank));
  if (!group->lifecycle.why().ok()) return group->lifecycle.why();
  const Call call{group, static_cast<size_t>(rank), waiter};
  v1::SuspendGroupReply reply;
  std::vector<SharedFd> fds;
  const auto describe = [&](bool descriptors) TANDEM_REQUIRES(registry_mutex) {
    for (const auto& set : group->Segments()) {
      reply.mutable_segment_ids()->Add(set->segment_ids.begin(), set->segment_ids.end());
      if (descriptors) fds.insert(fds.end(), set->fds.begin(), set->fds.end());
    }
  };
  switch (request.step()) {
    case v1::SuspendGroupRequest::STOPPED:
      TANDEM_RETURN_IF_ERROR(Stop(lock, call, request.number()));
      describe(false);
      break;
    case v1::SuspendGroupRequest::UNMAPPED: TANDEM_RETURN_IF_ERROR(Unmap(lock, call)); break;
    case v1::SuspendGroupRequest::RESUMING:
      TANDEM_RETURN_IF_ERROR(Resume(lock, call));
      reply.set_awake(group->suspension->state() == SuspensionState::kAwake);
      describe(!reply.awake());
      break;
    case v1::SuspendGroupRequest::MAPPED: TANDEM_RETURN_IF_ERROR(Map(lock, call)); break;
    default: return InvalidArgument("a suspension has no such step").WithDetail({.field = "step"});
  }
  reply.set_number(group->suspension->number);
  reply.set_generation(group->generation);
  reply.set_renewals(group->client.renewals);
  if (fds.empty()) return reply;
  reply.set_transfer_id(registry.next_id++);
  lock.Unlock();
  TANDEM_RETURN_IF_ERROR(core_.SendDescriptors(session->id, reply.transfer_id(), fds));
  return reply;
}

Status SuspensionService::CheckAlone(const GroupRecord& group) const {
  const auto shared = [&](const TensorRecord& tensor, uint64_t other) TANDEM_REQUIRES(registry_mutex) {
    return FailedPrecondition("group '" + group.name + "' cannot sleep: tensor " + std::to_string(tensor.id) +
                              " of session " + std::to_string(tensor.session_id) + " is group " +
                              std::to_string(other) + "'s, too; free it first")
        .WithDetail({.reason = "TENSOR_SHARED", .who = "session " + std::to_string(tensor.session_id)});
  };
  const std::vector<std::shared_ptr<SegmentSet>> sets = group.Segments();
  const std::set<std::shared_ptr<SegmentSet>> own(sets.begin(), sets.end());
  for (const auto& [session_id, session] : core_.registry.sessions) {
    for (const auto& [tensor_id, tensor] : session->tensors) {
      const bool is_here = tensor->block != nullptr && own.contains(tensor->block->set);
      for (const auto& [group_id, registration] : tensor->registrations) {
        if (is_here && group_id != group.id) return shared(*tensor, group_id);
        if (!is_here && group_id == group.id) return shared(*tensor, tensor->block->set->group_id);
      }
    }
  }
  return Status::Ok();
}

Status SuspensionService::Stop(RegistryLock& lock, const Call& call, uint64_t number) {
  GroupRecord& group = *call.group;
  if (number > kMaxLaunchNumber) {
    return InvalidArgument("no launch has the number " + std::to_string(number))
        .WithDetail({.field = "number"});
  }
  std::shared_ptr<Suspension>& current = group.suspension;
  if (current == nullptr || current->state() == SuspensionState::kAwake)
    current = std::make_shared<Suspension>(group.world(), group.name, group.illegal_transition);
  const std::shared_ptr<Suspension> suspension = current;
  if (suspension->state() != SuspensionState::kStopping) return Status::Ok();
  suspension->number = std::max(suspension->number, number + kRenewalSkips);
  const std::shared_ptr<Barrier> meeting = suspension->Meeting(SuspensionStep::kStopped);
  const bool gathering = meeting->phase() == Barrier::Phase::kGathering;
  if (gathering) meeting->Take(call.rank, call.waiter.deadline);
  if (gathering && meeting->Complete()) {
    meeting->BeginWork();
    const Waiter for_all = GroupInstaller::ForAllRanks(call.group, meeting->FirstDeadline());
    Status status = installer_.AwaitInstalled(lock, group, for_all);
    if (status.ok()) status = CheckAlone(group);
    if (status.ok()) {
      group.lifecycle.Apply(GroupEvent::kPutToSleep);
      suspension->since = Waiter::Clock::now();
      core_.registry.Touch(group);
    }
    (void)suspension->Apply(status.ok() ? SuspensionEvent::kAllStopped : SuspensionEvent::kFailed);
    if (!status.ok()) FailRequests(group, status);
    meeting->End(status);
  }
  TANDEM_RETURN_IF_ERROR(meeting->Await(lock, call.rank, call.waiter));
  const bool late = !meeting->verdict().ok() && suspension->state() == SuspensionState::kStopping;
  if (late) {
    (void)suspension->Apply(SuspensionEvent::kFailed);
    FailRequests(group, meeting->verdict());
  }
  return meeting->verdict();
}

void SuspensionService::FailRequests(const GroupRecord& group, const Status& why) {
  for (const MemberRecord& member : group.members) {
    if (member.session->suspension != nullptr) member.session->suspension->Fail(why);
  }
  core_.registry.engines_changed.notify_all();
}

Status SuspensionService::Unmap(RegistryLock& lock, const Call& call) {
  const std::shared_ptr<Suspension> suspension = call.group->suspension;
  if (suspension == nullptr) return NotThere(*call.group, "UNMAPPED");
  switch (suspension->state()) {
    case SuspensionState::kAsleep: return Status::Ok();
    case SuspensionState::kUnmapping:
    case SuspensionState::kMapping: break;
    default: return NotThere(*call.group, "UNMAPPED");
  }
  const std::shared_ptr<Barrier> meeting = suspension->Meeting(SuspensionStep::kUnmapped);
  const bool gathering = meeting->phase() == Barrier::Phase::kGathering;
  if (gathering) meeting->Take(call.rank, call.waiter.deadline);
  if (gathering && meeting->Complete()) {
    meeting->BeginWork();
    const Waiter for_all = GroupInstaller::ForAllRanks(call.group, meeting->FirstDeadline());
    Status status = lock.Outside([&] { return Drop(call.group, for_all); });
    if (status.ok()) (void)suspension->Apply(SuspensionEvent::kAllUnmapped);
    if (!call.group->lifecycle.why().ok()) status = call.group->lifecycle.why();
    meeting->End(status);
    core_.registry.engines_changed.notify_all();
    if (status.ok()) {
      core_.LogOf(call.group->payer.uid, LogSeverity::kInfo,
                  "group=" + std::to_string(call.group->id) + " sleeps");
    }
  }
  TANDEM_RETURN_IF_ERROR(meeting->Await(lock, call.rank, call.waiter));
  return meeting->verdict();
}

Status SuspensionService::Resume(RegistryLock& lock, const Call& call) {
  const std::shared_ptr<Suspension> suspension = call.group->suspension;
  if (suspension == nullptr || suspension->state() == SuspensionState::kStopping)
    return NotThere(*call.group, "RESUMING");
  const bool has_memory =
      suspension->state() == SuspensionState::kMapping || suspension->state() == SuspensionState::kAwake;
  if (has_memory) return Status::Ok();
  const std::shared_ptr<Barrier> meeting = suspension->Meeting(SuspensionStep::kResuming);
  const bool gathering = meeting->phase() == Barrier::Phase::kGathering;
  if (gathering) meeting->Take(call.rank, call.waiter.deadline);
  if (gathering && meeting->Complete()) {
    meeting->BeginWork();
    (void)suspension->Apply(SuspensionEvent::kAllResuming);
    const Waiter for_all = GroupInstaller::ForAllRanks(call.group, meeting->FirstDeadline());
    Status status = lock.Outside([&] { return Make(call.group, for_all); });
    if (!call.group->lifecycle.why().ok()) status = call.group->lifecycle.why();
    (void)suspension->Apply(status.ok() ? SuspensionEvent::kMade : SuspensionEvent::kFailed);
    suspension->hindered = status;
    core_.registry.engines_changed.notify_all();
    meeting->End(status);
  }
  TANDEM_RETURN_IF_ERROR(meeting->Await(lock, call.rank, call.waiter));
  return meeting->verdict();
}

Status SuspensionService::Map(RegistryLock& lock, const Call& call) {
  GroupRecord& group = *call.group;
  const std::shared_ptr<Suspension> suspension = group.suspension;
  if (suspension != nullptr && suspension->state() == SuspensionState::kAwake) return Status::Ok();
  if (suspension == nullptr || suspension->state() != SuspensionState::kMapping)
    return NotThere(group, "MAPPED");
  const std::shared_ptr<Barrier> meeting = suspension->Meeting(SuspensionStep::kMapped);
  if (meeting->phase() == Barrier::Phase::kGathering) meeting->Take(call.rank, call.waiter.deadline);
  if (meeting->phase() == Barrier::Phase::kGathering && meeting->Complete()) {
    meeting->BeginWork();
    // The end of an engine passes over a group that sleeps. The memory is there still, for the next engine.
    const Waiter for_all = GroupInstaller::ForAllRanks(call.group, meeting->FirstDeadline());
    Status status;
    while (status.ok() && !installer_.SameEngines(group)) {
      status = lock.Outside([&] { return Make(call.group, for_all); });
      if (!group.lifecycle.why().ok()) status = group.lifecycle.why();
    }
    if (status.ok()) Wake(group);
    (void)suspension->Apply(status.ok() ? SuspensionEvent::kAllMapped : SuspensionEvent::kFailed);
    suspension->hindered = status;
    meeting->End(status);
    core_.registry.engines_changed.notify_all();
  }
  TANDEM_RETURN_IF_ERROR(meeting->Await(lock, call.rank, call.waiter));
  return meeting->verdict();
}

void SuspensionService::Wake(GroupRecord& group) {
  // No rank launches before its answer, so that no kernel looks at the pages now.
  for (VerdictPage& page : group.client.pages) page.Clear();
  group.failures.clear();
  // As a renewal, it leaves numbers out, and later reports carry the count.
  if (!group.client.pages.empty()) ++group.client.renewals;
  group.lifecycle.Apply(GroupEvent::kWoken);
  core_.registry.Touch(group);
  core_.LogOf(group.payer.uid, LogSeverity::kInfo, "group=" + std::to_string(group.id) + " awakes");
}

Status SuspensionService::Drop(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter) {
  // A call that still makes memory for the group would leave it there.
  TANDEM_ASSIGN_OR_RETURN(const auto work, GroupInstaller::TakeWork(*group, waiter));
  auto dropped = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(core_.registry);
    if (!core_.registry.Has(*group)) return Status::Ok();
    installer_.Uninstall(*group, -1);
    if (group->control) segments_.RemoveSet(group->control);
    group->control.reset();
    for (const auto& set : group->Segments()) segments_.DropMemory(*set);
    core_.registry.Touch(*group);
    engine::v1::Command ping;
    ping.mutable_ping();
    core_.registry.PostToAll(*group, ping, dropped);
  }
  // An engine that ends meanwhile has dropped it, too.
  (void)dropped->Wait(waiter);
  return Status::Ok();
}

Status SuspensionService::Make(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter) {
  TANDEM_ASSIGN_OR_RETURN(const auto work, GroupInstaller::TakeWork(*group, waiter));
  Registry& registry = core_.registry;
  std::vector<std::shared_ptr<SegmentSet>> sets;
  {
    RegistryLock lock(registry);
    sets = group->Segments();
  }
  Status status;
  for (const auto& set : sets) {
    if (status.ok()) status = segments_.MakeMemory(*group, set, waiter);
  }
  bool installs = false;
  if (status.ok()) {
    RegistryLock lock(registry);
    const bool same_engines = installer_.SameEngines(*group);
    installs = group->control == nullptr || !same_engines;
    if (!same_engines) ++group->generation;
    // The engines that live on hold it still.
    if (!same_engines && group->control != nullptr) installer_.Uninstall(*group, -1);
    registry.Touch(*group);
  }
  if (installs) status = installer_.Install(*group, waiter);
  if (status.ok()) return status;
  // Half of it would be of no use to the group, and is memory that others lack.
  RegistryLock lock(registry);
  installer_.Uninstall(*group, -1);
  if (group->control) segments_.RemoveSet(group->control);
  group->control.reset();
  for (const auto& set : sets) segments_.DropMemory(*set);
  registry.Touch(*group);
  return status.WithContext("group '" + group->name + "' stays asleep");
}

}  // namespace tandem::daemon
