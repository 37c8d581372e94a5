#include "daemon/control/restart/adoption.h"

#include <memory>
#include <set>

#include "common/process_identity.h"
#include "daemon/control/base/blame.h"
#include "ipc/arrival_table.h"

namespace tandem::daemon {
namespace {

constexpr char kNoDaemon[] = "while no tandemd was there";

bool HasAll(const std::shared_ptr<SegmentSet>& set) TANDEM_REQUIRES(registry_mutex) {
  if (!set) return true;
  for (const SharedFd& fd : set->fds) {
    if (!fd) return false;
  }
  return true;
}

}  // namespace

const EngineHoldings::HeldGroup* Adoption::HeldBy(int gpu, uint64_t group_id) const {
  const auto& engine = engines_[static_cast<size_t>(gpu)];
  if (!engine.has_value()) return nullptr;
  const auto held = engine->groups.find(group_id);
  return held == engine->groups.end() ? nullptr : &held->second;
}

void Adoption::TakeOver(const SavedState& state) {
  Registry& registry = core_.registry;
  std::vector<std::pair<uint64_t, std::string>> lost;
  {
    RegistryLock lock(registry);
    for (size_t gpu = 0; gpu < engines_.size(); ++gpu) {
      if (!engines_[gpu].has_value()) continue;
      registry.engine_generation[gpu] = engines_[gpu]->generation;
      registry.mailboxes[gpu]->SetGeneration(engines_[gpu]->generation);
    }
    RegistryRestorer restorer(core_, by_.joins, state, engines_);
    restorer.Restore();
    for (const auto& [group_id, rank] : restorer.orphans()) {
      const auto group = registry.groups.find(group_id);
      if (group == registry.groups.end()) continue;
      const MemberRecord& member = group->second->members[static_cast<size_t>(rank)];
      by_.groups.Break(*group->second,
                       Unavailable("rank " + std::to_string(rank) + " (pid " + std::to_string(member.pid) +
                                   ") of group '" + group->second->name + "' was lost")
                           .WithDetail(BlameRank("RANK_LOST", rank, {}, member.pid)),
                       rank);
      by_.groups.RemoveMember(group->second, rank, true);
    }
    lost = LostSessions();
    std::set<uint64_t> ending;  // for the cause that is reported with the session's end
    for (const auto& [session_id, why] : lost)
      ending.insert(registry.sessions[session_id]->groups.begin(),
                    registry.sessions[session_id]->groups.end());
    std::vector<std::shared_ptr<GroupRecord>> groups;
    for (const auto& [id, group] : registry.groups) {
      if (!ending.contains(id)) groups.push_back(group);
    }
    for (const auto& group : groups) SettleGroup(group);
    for (size_t gpu = 0; gpu < engines_.size(); ++gpu) {
      if (engines_[gpu].has_value()) {
        ReconcileEngine(static_cast<int>(gpu), *engines_[gpu]);
      } else if (registry.engine_uses[gpu].sessions > 0) {  // else it may have rested
        core_.Log(LogSeverity::kError,
                  "the engine of GPU " + std::to_string(gpu) + " has ended " + kNoDaemon);
      }
    }
    core_.Log(LogSeverity::kInfo,
              "taken over from an earlier tandemd: " + std::to_string(registry.sessions.size()) +
                  " sessions, " + std::to_string(registry.groups.size()) + " groups, " +
                  std::to_string(registry.plan_groups.size()) + " plans");
  }
  for (const auto& [session_id, why] : lost) by_.sessions.Lost(session_id, why);
}

std::vector<std::pair<uint64_t, std::string>> Adoption::LostSessions() const {
  std::vector<std::pair<uint64_t, std::string>> lost;
  for (const auto& [id, session] : core_.registry.sessions) {
    const ProcessIdentity process{.pid = session->peer.pid, .start_ticks = session->peer.start_ticks};
    if (process.Gone() && !session->checkpoint.since.has_value()) {
      lost.emplace_back(id, std::string("its process ended ") + kNoDaemon);
      continue;
    }
    if (session->protocol < kReattachProtocol) {
      lost.emplace_back(id, "its client speaks protocol " + std::to_string(session->protocol) +
                                ", which knows no way back after a restart of tandemd");
      continue;
    }
    int without = -1;
    for (const auto& [channel_id, channel] : session->channels) {
      if (!channel.over && !engines_[static_cast<size_t>(channel.gpu)].has_value()) without = channel.gpu;
    }
    for (const auto& [registration_id, registration] : session->registrations) {
      if (!engines_[static_cast<size_t>(registration.gpu)].has_value()) without = registration.gpu;
    }
    // Streams may wait for the engine, and only the client can let them go: its words went with the engine.
    if (without >= 0)
      lost.emplace_back(id, "the engine of GPU " + std::to_string(without) + " ended " + kNoDaemon);
  }
  return lost;
}

bool Adoption::KeepsMemory(const GroupRecord& group) const {
  bool all = group.arrivals != nullptr && HasAll(group.half0) && HasAll(group.half1) && HasAll(group.bulk) &&
             HasAll(group.client.signals) && HasAll(group.client.workspace);
  for (const auto& set : group.symmetric) all = all && HasAll(set);
  return all && KeepsPages(group);
}

bool Adoption::KeepsPages(const GroupRecord& group) const {
  return !group.client.signals || !group.client.pages.empty();
}

bool Adoption::IsInstalled(const GroupRecord& group) const {
  for (const int gpu : group.gpus) {
    const EngineHoldings::HeldGroup* const held = HeldBy(gpu, group.id);
    if (held == nullptr || held->generation != group.generation) return false;
  }
  return HasAll(group.control);
}

void Adoption::SettleGroup(const std::shared_ptr<GroupRecord>& group) {
  Registry& registry = core_.registry;
  const GroupState state = group->state();
  if (state == GroupState::kBroken) {
    registry.PostToAll(*group, BreakCommand(group->id, group->lifecycle.why()));
    group->AbortClientLaunches(1, group->lifecycle.why());
    return;
  }
  const bool asleep = state == GroupState::kAsleep;
  if (asleep ? !KeepsPages(*group) : !KeepsMemory(*group)) {
    by_.groups.Break(*group,
                     Unavailable("group '" + group->name + "': memory of it was lost " + kNoDaemon)
                         .WithDetail({.reason = "GROUP_BROKEN", .who = {}, .field = {}}),
                     -1);
    return;
  }
  if (asleep) return SettleSleeper(*group);
  if (state != GroupState::kSuspended && IsInstalled(*group)) return ReconcileGroup(*group);
  const Status ended(Code::kAborted,
                     "group '" + group->name + "': an engine ended or got the group again " + kNoDaemon,
                     {.reason = "ENGINE_RESTARTED", .who = {}, .field = {}});
  registry.Touch(*group);
  registry.PostToAll(*group, BreakCommand(group->id, ended));
  if (state != GroupState::kSuspended) group->lifecycle.Apply(GroupEvent::kEngineEnded);
  if (state == GroupState::kClosing) return by_.groups.BreakClosing(*group);
  by_.installer.Uninstall(*group, -1);
  if (registry.AllUp(group->gpus)) by_.restorer.RestoreSoon(group);
}

void Adoption::SettleSleeper(GroupRecord& group) {
  for (const auto& set : group.Segments()) {
    if (!HasAll(set)) by_.segments.DropMemory(*set);
  }
  core_.registry.Touch(group);
  if (!group.control || IsInstalled(group)) return;
  by_.installer.Uninstall(group, -1);
  by_.segments.RemoveSet(group.control);
  group.control.reset();
}

void Adoption::ReconcileGroup(GroupRecord& group) {
  Registry& registry = core_.registry;
  const Result<ArrivalTable> arrivals =
      ArrivalTable::Map(group.arrivals->get(), static_cast<int>(group.world()));
  bool same_workspace = true;
  for (size_t rank = 0; rank < group.world(); ++rank) {
    const int gpu = group.gpus[rank];
    const EngineHoldings::HeldGroup& held = *HeldBy(gpu, group.id);
    for (const uint64_t plan_id : held.plans) {
      const auto plan = group.plans.find(plan_id);
      if (plan != group.plans.end() && !plan->second.client) continue;
      engine::v1::Command command;
      command.mutable_remove_plan()->set_plan_id(plan_id);
      registry.MailboxOf(gpu).Post(std::move(command));
    }
    for (const auto& [plan_id, plan] : group.plans) {
      if (plan.client || held.plans.contains(plan_id)) continue;
      engine::v1::Command command;
      command.ParseFromString(plan.commands[rank]);
      if (arrivals.ok())
        command.mutable_add_plan()->set_next_count(arrivals->Count(plan.index, static_cast<int>(rank)));
      registry.MailboxOf(gpu).Post(std::move(command));
    }
    engine::v1::SetWorkspace workspace;
    workspace.ParseFromString(held.workspace);
    const auto is_first = [](const auto& segments, const std::shared_ptr<SegmentSet>& set) {
      return segments.empty() ? !set : set && segments.Get(0) == set->segment_ids[0];
    };
    same_workspace = same_workspace && is_first(workspace.half0_segments(), group.half0) &&
                     is_first(workspace.bulk_segments(), group.bulk);
  }
  if (!same_workspace) by_.installer.PostWorkspace(group, nullptr);
  for (const auto& [id, tensor] : group.tensors) {
    for (const int gpu : group.gpus) {
      if (engines_[static_cast<size_t>(gpu)]->registrations.contains(id)) continue;
      by_.installer.PostRegistration(group, id, nullptr);  // an engine that has it refuses it
      break;
    }
  }
}

void Adoption::ReconcileEngine(int gpu, const EngineHoldings& engine) {
  Registry& registry = core_.registry;
  EngineMailbox& mailbox = registry.MailboxOf(gpu);
  // First what stands on other things.
  for (const auto& [group_id, held] : engine.groups) {
    const auto group = registry.groups.find(group_id);
    if (group != registry.groups.end()) continue;
    for (const uint64_t plan_id : held.plans) {
      engine::v1::Command command;
      command.mutable_remove_plan()->set_plan_id(plan_id);
      mailbox.Post(std::move(command));
    }
    engine::v1::Command command;
    command.mutable_remove_group()->set_group_id(group_id);
    mailbox.Post(std::move(command));
  }
  for (const auto& [key, fds] : engine.fds) {
    const auto group = registry.groups.find(key.second);
    if (key.first != engine::v1::Held::PAGES ||
        (group != registry.groups.end() && !group->second->client.pages.empty()))
      continue;
    engine::v1::Command command;
    command.mutable_keep_pages()->set_group_id(key.second);
    mailbox.Post(std::move(command));
  }
  ReconcileSessions(gpu, engine);
  ReconcileSegments(gpu, engine);
}

void Adoption::ReconcileSessions(int gpu, const EngineHoldings& engine) {
  Registry& registry = core_.registry;
  std::set<uint64_t> channels, registrations;
  for (const auto& [id, session] : registry.sessions) {
    for (auto& [channel_id, channel] : session->channels) {
      if (channel.gpu != gpu) continue;
      channels.insert(channel_id);
      // The engine had closed it before the journal could say so.
      if (!engine.channels.contains(channel_id) || !channel.words) channel.over = true;
    }
    for (const auto& [registration_id, registration] : session->registrations) {
      if (registration.gpu == gpu) registrations.insert(registration_id);
    }
  }
  for (const auto& [id, group] : registry.groups) {
    for (const auto& [tensor_id, tensor] : group->tensors) registrations.insert(tensor_id);
  }
  for (const uint64_t id : engine.channels) {
    if (channels.contains(id)) continue;
    engine::v1::Command command;
    command.mutable_close_channel()->set_channel_id(id);
    registry.MailboxOf(gpu).Post(std::move(command));
  }
  for (const uint64_t id : engine.registrations) {
    if (registrations.contains(id)) continue;
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(id);
    registry.MailboxOf(gpu).Post(std::move(command));
  }
}

void Adoption::ReconcileSegments(int gpu, const EngineHoldings& engine) {
  Registry& registry = core_.registry;
  std::set<uint64_t> wanted;
  for (const auto& set : registry.sets) {
    for (size_t rank = 0; rank < set->segment_ids.size(); ++rank) {
      const uint64_t id = set->segment_ids[rank];
      if ((set->mapped[rank] & (1u << gpu)) == 0) continue;
      wanted.insert(id);
      if (engine.segments.contains(id) || !set->fds[rank]) continue;
      engine::v1::Command command;
      command.mutable_add_segment()->set_segment_id(id);
      command.mutable_add_segment()->set_bytes(set->bytes);
      registry.MailboxOf(gpu).Post(std::move(command), {set->fds[rank]});
    }
  }
  for (const uint64_t id : engine.segments) {
    if (wanted.contains(id)) continue;
    engine::v1::Command command;
    command.mutable_remove_segment()->set_segment_id(id);
    registry.MailboxOf(gpu).Post(std::move(command));
  }
}

}  // namespace tandem::daemon
