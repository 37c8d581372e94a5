// The end of a group: members leave or are lost, the group breaks, and when the last one has gone its name is
// free for the next incarnation.
#include <algorithm>

#include "daemon/control/control.h"
#include "daemon/control/registry.h"

namespace tandem::daemon {
namespace {

void FillStatus(const Status& status, v1::StatusDetail* out) {
  out->set_code(static_cast<int>(status.code()));
  out->set_message(status.message());
  out->set_reason(status.detail().reason);
  out->set_who(status.detail().who);
}

}  // namespace

Status Control::LeaveGroup(const SessionRef& session, uint64_t group_id, const Waiter& waiter) {
  int rank = 0;
  std::shared_ptr<Group> group;
  auto drained = std::make_shared<CommandBatch>();
  engine::v1::Command command;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    TANDEM_ASSIGN_OR_RETURN(group, FindGroupLocked(*session, group_id, &rank));
    command.mutable_leave_group()->set_group_id(group_id);
    command.mutable_leave_group()->set_rank(rank);
    if (group->state == GroupState::kBroken || group->suspended) {
      MemberLeftLocked(group, rank, false);
      return Status::Ok();
    }
    // What was posted before, launches by gRPC too, goes first.
    engine::v1::Command ping;
    ping.mutable_ping();
    registry_->mailboxes[static_cast<size_t>(group->members[static_cast<size_t>(rank)].gpu)]->Post(
        std::move(ping), {}, drained);
  }
  Status left = drained->Wait(waiter);
  if (left.ok()) {
    // Not through the mailbox: the answer comes when this rank's launches have ended, and nothing may wait
    // behind it.
    const auto rest =
        std::chrono::duration_cast<std::chrono::milliseconds>(waiter.deadline - Waiter::Clock::now());
    left = engines_.Call(group->members[static_cast<size_t>(rank)].gpu, command, {},
                         std::max(rest, std::chrono::milliseconds(1)));
  }
  Lock lock(registry_->mutex);
  const Member& member = group->members[static_cast<size_t>(rank)];
  if (member.left) return Status::Ok();
  if (!left.ok() && registry_->stopping)
    return Unavailable("the daemon is stopping");  // its launches may be in flight
  const bool engine_gone = left.code() == Code::kUnavailable || group->state == GroupState::kBroken;
  if (!left.ok() && !engine_gone) {
    return left.WithContext("rank " + std::to_string(rank) + " of group '" + group->name +
                            "' still has launches in flight");
  }
  // The others' engines fail later launches with this rank's name; what is in flight there goes on.
  for (const Member& other : group->members) {
    if (&other == &member) continue;
    registry_->mailboxes[static_cast<size_t>(other.gpu)]->Post(command);
  }
  MemberLeftLocked(group, rank, false);
  return Status::Ok();
}

void Control::FailMeetingsLocked(Group& group, const Status& why) {
  const auto fail = [&](Meeting& meeting) {
    if (meeting.phase != Meeting::Phase::kWaiting) return;
    meeting.phase = Meeting::Phase::kDone;
    meeting.status = why;
    meeting.changed.notify_all();
  };
  for (const auto& [key, meeting] : group.prepares) fail(*meeting);
  for (const auto& [key, meeting] : group.rendezvous) fail(*meeting);
}

void Control::BreakGroupLocked(Group& group, const Status& why, int lost_rank) {
  if (group.state == GroupState::kBroken) return;
  group.SetBroken(why);
  registry_->engines_changed.notify_all();          // for whoever waits for an engine on the group's behalf
  if (group.state == GroupState::kJoining) return;  // whoever installs it sees `broken`
  group.state = GroupState::kBroken;
  ++registry_->groups_broken_total;
  engine::v1::Command command;
  engine::v1::BreakGroup& message = *command.mutable_break_group();
  message.set_group_id(group.id);
  message.set_code(static_cast<int>(why.code()));
  message.set_message(why.message());
  message.set_reason(why.detail().reason);
  message.set_who(why.detail().who);
  for (const Member& member : group.members) {
    registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command);
  }
  FailMeetingsLocked(group, why);
  v1::Event event;
  event.set_group_id(group.id);
  event.set_rank(lost_rank);
  event.set_generation(group.generation);
  FillStatus(why, event.mutable_status());
  event.set_kind(v1::Event::RANK_LOST);
  PostGroupEventLocked(group, event, lost_rank);
  event.set_kind(v1::Event::GROUP_BROKEN);
  PostGroupEventLocked(group, event, lost_rank);
  group.changed.notify_all();
  registry_->names[group.scope].freed->notify_all();
  Log(LogSeverity::kWarning, "group=" + std::to_string(group.id) + " broken: " + why.message());
}

// A group that a rank has left is not installed again: once one of its engines has gone, no engine is there
// to fail the others' launches with that rank's name, and no restart comes that they could wait for.
void Control::BreakLeftGroupLocked(Group& group) {
  group.state = GroupState::kBroken;
  group.suspended = false;
  ++registry_->groups_broken_total;
  v1::Event event;
  event.set_kind(v1::Event::GROUP_BROKEN);
  event.set_group_id(group.id);
  event.set_rank(-1);
  event.set_generation(group.generation);
  FillStatus(group.broken, event.mutable_status());
  PostGroupEventLocked(group, event, -1);
  group.changed.notify_all();
  registry_->engines_changed.notify_all();
  Log(LogSeverity::kWarning,
      "group=" + std::to_string(group.id) + " broken, an engine of it has ended: " + group.broken.message());
}

void Control::PostGroupEventLocked(Group& group, const v1::Event& event, int except_rank) {
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const Member& member = group.members[rank];
    if (static_cast<int>(rank) == except_rank || member.left || member.session->ended) continue;
    PostEventLocked(*member.session, event);
  }
}

void Control::MemberLeftLocked(const std::shared_ptr<Group>& group, int rank, bool lost) {
  Member& member = group->members[static_cast<size_t>(rank)];
  if (member.left) return;
  member.left = true;
  member.lost = lost;
  member.session->groups.erase(group->id);
  // Tensors of a rank that has gone hold nobody up.
  for (auto& [id, tensor] : group->tensors) {
    tensor.freed[static_cast<size_t>(rank)] = true;
    if (tensor.tensors[static_cast<size_t>(rank)]) {
      tensor.tensors[static_cast<size_t>(rank)]->registrations.erase(group->id);
    }
  }
  for (auto& [id, plan] : group->plans) plan.released[static_cast<size_t>(rank)] = true;
  if (group->state == GroupState::kJoining && group->broken.ok()) {
    group->SetBroken(Status(Code::kUnavailable,
                            "rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) +
                                ") of group '" + group->name + "' left while it joined",
                            {.reason = "RANK_LEFT", .who = "rank " + std::to_string(rank), .field = {}}));
    registry_->engines_changed.notify_all();
  }
  const bool all_left =
      std::all_of(group->members.begin(), group->members.end(), [](const Member& m) { return m.left; });
  if (group->state == GroupState::kReady) {
    group->state = GroupState::kClosing;
    group->SetBroken(Status(Code::kUnavailable,
                            "rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) +
                                ") has left group '" + group->name + "'",
                            {.reason = "RANK_LEFT", .who = "rank " + std::to_string(rank), .field = {}}));
    registry_->engines_changed.notify_all();
    FailMeetingsLocked(*group, group->broken);
  }
  if (!lost && group->state == GroupState::kClosing) {
    v1::Event event;
    event.set_kind(v1::Event::RANK_LEFT);
    event.set_group_id(group->id);
    event.set_rank(rank);
    event.set_generation(group->generation);
    PostGroupEventLocked(*group, event, rank);
  }
  if (group->state == GroupState::kClosing && group->suspended && !all_left) BreakLeftGroupLocked(*group);
  if (all_left && group->state != GroupState::kJoining) DestroyGroupLocked(group);
  group->changed.notify_all();
}

void Control::DestroyGroupLocked(const std::shared_ptr<Group>& group) {
  UninstallLocked(*group, -1);
  for (const auto& [id, plan] : group->plans) {
    registry_->plan_groups.erase(id);
    registry_->ledger.Refund(group->payer, Resource::kPlanBytes, plan.kept_bytes);
  }
  registry_->ledger.Refund(group->payer, Resource::kPlans, group->plans.size());
  registry_->ledger.Refund(group->payer, Resource::kGroups, 1);
  group->plans.clear();
  group->prepares.clear();
  group->rendezvous.clear();
  for (auto& [id, tensor] : group->tensors) {
    for (const auto& own : tensor.tensors) {
      if (own) own->registrations.erase(group->id);
    }
  }
  group->tensors.clear();
  for (auto* set : {&group->control, &group->half0, &group->half1, &group->bulk}) {
    if (*set) RemoveSetLocked(*set);
    set->reset();
  }
  for (const auto& set : group->outgrown) RemoveSetLocked(set);
  group->outgrown.clear();
  for (const auto& set : group->symmetric) {
    set->owned = false;
    DropSetIfUnusedLocked(set);
  }
  group->symmetric.clear();
  for (Member& member : group->members) {
    member.left = true;
    member.session->groups.erase(group->id);
  }
  if (group->state == GroupState::kReady || group->state == GroupState::kJoining)
    group->state = GroupState::kClosing;
  registry_->groups.erase(group->id);
  auto entry = registry_->names.find(group->scope);
  if (entry != registry_->names.end() && entry->second.current == group) {
    entry->second.current.reset();
    entry->second.freed->notify_all();
    ForgetNameLocked(group->scope);
  }
  group->changed.notify_all();
  registry_->engines_changed.notify_all();
  Log(LogSeverity::kInfo, "group=" + std::to_string(group->id) + " name=" + group->name + " ended");
}

}  // namespace tandem::daemon
