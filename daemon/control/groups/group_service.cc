#include "daemon/control/groups/group_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/log_field.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/status_proto.h"

namespace tandem::daemon {
namespace {

std::string NameOf(int rank, const MemberRecord& member) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) + ")";
}

}  // namespace

v1::Event GroupService::EventOf(const GroupRecord& group, v1::Event::Kind kind, int rank,
                                const Status& status) {
  v1::Event event;
  event.set_kind(kind);
  event.set_group_id(group.id);
  event.set_rank(rank);
  event.set_generation(group.generation);
  if (!status.ok()) FillStatusDetail(status, event.mutable_status());
  return event;
}

Status GroupService::Leave(const SessionRef& session, uint64_t group_id, const Waiter& waiter) {
  Registry& registry = core_.registry;
  int rank = 0, gpu = 0;
  std::shared_ptr<GroupRecord> group;
  auto drained = std::make_shared<CommandBatch>();
  engine::v1::Command command;
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    TANDEM_ASSIGN_OR_RETURN(group, registry.FindGroup(*session, group_id, &rank));
    gpu = group->gpus[static_cast<size_t>(rank)];
    command.mutable_leave_group()->set_group_id(group_id);
    command.mutable_leave_group()->set_rank(rank);
    if (group->state() == GroupState::kBroken || IsOffEngines(group->state())) {
      RemoveMember(group, rank, false);
      return Status::Ok();
    }
    // Commands that were posted before, launches by gRPC too, go first.
    engine::v1::Command ping;
    ping.mutable_ping();
    registry.MailboxOf(gpu).Post(std::move(ping), {}, drained);
  }
  Status left = drained->Wait(waiter);
  if (left.ok()) {
    // Not through the mailbox: the answer comes when this rank's launches have ended, and nothing may wait
    // behind it.
    const auto rest =
        std::chrono::duration_cast<std::chrono::milliseconds>(waiter.deadline - Waiter::Clock::now());
    left = core_.engines.Call(gpu, command, {}, std::max(rest, std::chrono::milliseconds(1)));
  }
  RegistryLock lock(registry);
  if (group->members[static_cast<size_t>(rank)].left) return Status::Ok();
  if (!left.ok() && registry.stopping)
    return Unavailable("the daemon is stopping");  // its launches may be in flight
  const bool engine_gone = left.code() == Code::kUnavailable || group->state() == GroupState::kBroken;
  if (!left.ok() && !engine_gone) {
    return left.WithContext("rank " + std::to_string(rank) + " of group '" + group->name +
                            "' still has launches in flight");
  }
  // The others' engines fail later launches with this rank's name; what is in flight there goes on.
  registry.PostToAll(*group, command, nullptr, gpu);
  RemoveMember(group, rank, false);
  return Status::Ok();
}

void GroupService::Break(GroupRecord& group, const Status& why, int lost_rank) {
  Registry& registry = core_.registry;
  const GroupState before = group.state();
  if (before == GroupState::kBroken || !group.lifecycle.Apply(GroupEvent::kFailed, why)) return;
  registry.Touch(group);
  registry.engines_changed.notify_all();  // for whoever waits for an engine on the group's behalf
  if (group.state() == GroupState::kDoomed) return;
  ++registry.counters.groups_broken_total;
  registry.PostToAll(group, BreakCommand(group.id, why));
  group.AbortClientLaunches(1, why);
  group.EndGatherings(why);
  registry.TouchPlans(group);  // their armings
  PostEvent(group, EventOf(group, v1::Event::RANK_LOST, lost_rank, why), lost_rank);
  PostEvent(group, EventOf(group, v1::Event::GROUP_BROKEN, lost_rank, why), lost_rank);
  registry.names[group.scope].freed->notify_all();
  core_.LogOf(group.payer.uid, LogSeverity::kWarning,
              "group=" + std::to_string(group.id) + " broken: " + why.message());
}

void GroupService::EndLongSuspensions() {
  const std::chrono::milliseconds limit = core_.options.suspension_limit;
  if (limit.count() == 0) return;
  RegistryLock lock(core_.registry);
  std::vector<std::shared_ptr<GroupRecord>> asleep;
  for (const auto& [id, group] : core_.registry.groups) {
    if (group->state() == GroupState::kAsleep && group->suspension->state() == SuspensionState::kAsleep &&
        Waiter::Clock::now() - group->suspension->since >= limit)
      asleep.push_back(group);
  }
  for (const auto& group : asleep) {
    Break(*group,
          Unavailable("group '" + group->name + "' was suspended for " + Seconds(limit) +
                      ", the longest that this node allows (suspension_limit_ms)")
              .WithDetail({.reason = "SUSPENSION_LIMIT"}),
          -1);
  }
}

void GroupService::Stall(GroupRecord& group, const Status& why) {
  group.Stall(why);
  ShowStall(group, why);
}

void GroupService::NoteEnginesStalled(GroupRecord& group, const Status& why) {
  if (group.engine_stall.stalled()) return;
  group.engine_stall.Apply(StallEvent::kLaunchFailed, why);
  ShowStall(group, why);
}

void GroupService::ShowStall(GroupRecord& group, const Status& why) {
  core_.registry.Touch(group);
  ++core_.registry.counters.groups_stalled_total;
  core_.registry.engines_changed.notify_all();  // for whoever has reported
  const std::vector<uint32_t>& ranks = why.detail().ranks;
  const int rank = ranks.empty() ? -1 : static_cast<int>(ranks.front());
  PostEvent(group, EventOf(group, v1::Event::GROUP_STALLED, rank, why), -1);
  core_.LogOf(group.payer.uid, LogSeverity::kWarning,
              "group=" + std::to_string(group.id) + " stalled: " + why.message());
}

void GroupService::BreakClosing(GroupRecord& group) {
  ++core_.registry.counters.groups_broken_total;
  core_.registry.Touch(group);
  PostEvent(group, EventOf(group, v1::Event::GROUP_BROKEN, -1, group.lifecycle.why()), -1);
  core_.registry.engines_changed.notify_all();
  core_.LogOf(group.payer.uid, LogSeverity::kWarning,
              "group=" + std::to_string(group.id) +
                  " broken, one of its engines has ended: " + group.lifecycle.why().message());
}

void GroupService::RemoveMember(const std::shared_ptr<GroupRecord>& group, int rank, bool lost) {
  Registry& registry = core_.registry;
  const size_t r = static_cast<size_t>(rank);
  MemberRecord& member = group->members[r];
  if (member.left) return;
  member.left = true;
  registry.Touch(*group);
  member.session->groups.erase(group->id);
  // Tensors of a rank that has gone hold nobody up.
  for (auto& [id, tensor] : group->tensors) {
    tensor.freed[r] = true;
    if (tensor.tensors[r]) tensor.tensors[r]->registrations.erase(group->id);
  }
  for (auto& [id, plan] : group->plans) plan.released[r] = true;
  registry.TouchPlans(*group);
  const GroupState before = group->state();
  const bool installing = before == GroupState::kInstalling || before == GroupState::kDoomed;
  const Status why(Code::kUnavailable,
                   NameOf(rank, member) + (installing ? " of group '" + group->name + "' left while it joined"
                                                      : " has left group '" + group->name + "'"),
                   BlameRank("RANK_LEFT", rank, {}, member.pid));
  group->lifecycle.Apply(GroupEvent::kRankLeft, why);
  // Client-placed launches that this rank has finished need it no more; later ones would wait for it.
  if (!installing && !group->client.pages.empty()) {
    const uint64_t finished = lost ? 0 : group->client.pages[r].Finished();
    group->AbortClientLaunches(finished == UINT64_MAX ? 1 : finished + 1, why, rank);
  }
  registry.engines_changed.notify_all();
  if (installing) return;
  const bool all_left =
      std::all_of(group->members.begin(), group->members.end(), [](const MemberRecord& m) { return m.left; });
  if (before == GroupState::kReady || IsOffEngines(before)) group->EndGatherings(why);
  if (!lost && before != GroupState::kBroken) {
    PostEvent(*group, EventOf(*group, v1::Event::RANK_LEFT, rank, Status::Ok()), rank);
  }
  if (IsOffEngines(before) && !all_left) BreakClosing(*group);
  if (all_left) Destroy(group);
}

void GroupService::Destroy(const std::shared_ptr<GroupRecord>& group) {
  Registry& registry = core_.registry;
  installer_.Uninstall(*group, -1);
  for (const auto& [id, plan] : group->plans) {
    registry.plan_groups.erase(id);
    registry.ledger.Refund(group->payer, Resource::kPlanBytes, plan.kept_bytes);
  }
  registry.ledger.Refund(group->payer, Resource::kPlans, group->plans.size());
  registry.ledger.Refund(group->payer, Resource::kGroups, 1);
  group->plans.clear();
  group->prepares.clear();
  group->tensor_barriers.clear();
  for (auto& [id, tensor] : group->tensors) {
    for (const auto& own : tensor.tensors) {
      if (own) own->registrations.erase(group->id);
    }
  }
  group->tensors.clear();
  for (auto* set : {&group->control, &group->half0, &group->half1, &group->bulk}) {
    if (*set) segments_.RemoveSet(*set);
    set->reset();
  }
  registry.counters.client_launches_total += group->ClientLaunches();
  client_memory_.Remove(*group);
  for (const auto& set : group->outgrown) segments_.RemoveSet(set);
  group->outgrown.clear();
  for (const auto& set : group->symmetric) {
    set->owned = false;
    registry.Touch(*set);
    segments_.DropSetIfUnused(set);
  }
  group->symmetric.clear();
  for (MemberRecord& member : group->members) {
    member.left = true;
    member.session->groups.erase(group->id);
  }
  group->lifecycle.Apply(GroupEvent::kEnded);
  registry.groups.erase(group->id);
  registry.Touch(*group);
  const auto name = registry.names.find(group->scope);
  if (name != registry.names.end() && name->second.current == group) {
    name->second.current.reset();
    name->second.freed->notify_all();
    registry.ForgetName(group->scope);
  }
  registry.engines_changed.notify_all();
  core_.LogOf(group->payer.uid, LogSeverity::kInfo,
              "group=" + std::to_string(group->id) + " name=" + log::FieldValue(group->name) + " ended");
}

}  // namespace tandem::daemon
