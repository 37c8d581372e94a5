#include "daemon/control/inspector.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/control/base/blame.h"
#include "program/program_codec.h"

namespace tandem::daemon {
namespace {

// As tools know it: a group whose ranks still meet has no record, and joins as well.
const char* ShownState(GroupState state) {
  if (state == GroupState::kInstalling || state == GroupState::kDoomed) return "joining";
  return GroupStateName(state);
}

double SecondsSince(Waiter::Clock::time_point since) {
  return std::chrono::duration<double>(Waiter::Clock::now() - since).count();
}

}  // namespace

ControlSnapshot Inspector::Snapshot() {
  RegistryLock lock(core_.registry);
  core_.registry.ForgetVerdicts(Waiter::Clock::now() - core_.options.verdict_memory);
  ControlSnapshot snapshot;
  snapshot.instance_id = instance_id_;
  snapshot.uptime_seconds = SecondsSince(started_);
  snapshot.open_to_all = core_.options.allow.empty();
  snapshot.admission = core_.registry.admission;
  snapshot.cordoned_gpus = core_.registry.cordoned_gpus;
  snapshot.sessions = core_.registry.sessions.size();
  snapshot.groups = core_.registry.groups.size();
  static_cast<NodeCounters&>(snapshot) = core_.registry.counters;
  for (const auto& [id, session] : core_.registry.sessions)
    snapshot.events_dropped_total += session->events_dropped;
  snapshot.quota_use = core_.registry.ledger.LargestUse();
  snapshot.owners = core_.registry.ledger.Owners(kMaxOwners);
  snapshot.quota_use["sessions"] = static_cast<double>(snapshot.sessions) /
                                   static_cast<double>(std::max<uint64_t>(core_.options.limits.sessions, 1));
  for (const auto& [id, group] : core_.registry.groups) {
    snapshot.plans += group->plans.size();
    snapshot.client_launches_total += group->ClientLaunches();
  }
  for (const auto& [id, session] : core_.registry.sessions) {
    snapshot.tensors += session->tensors.size();
    snapshot.registrations += session->registrations.size();
    snapshot.channels += session->channels.size();
    ++snapshot.sessions_by_uid[session->peer.uid];
  }
  snapshot.names = core_.registry.names.size();
  for (const auto& set : core_.registry.sets) {
    if (!set->dropped) snapshot.segment_bytes += set->bytes * set->segment_ids.size();
  }
  snapshot.descriptors = core_.registry.ledger.Total(Resource::kDescriptors);
  return snapshot;
}

std::vector<SessionSnapshot> Inspector::SnapshotSessions() {
  RegistryLock lock(core_.registry);
  std::vector<SessionSnapshot> snapshots;
  for (const auto& [id, session] : core_.registry.sessions) {
    SessionSnapshot snapshot;
    snapshot.id = id;
    snapshot.uid = session->peer.uid;
    snapshot.gid = session->peer.gid;
    snapshot.pid = session->peer.pid;
    snapshot.name = session->name;
    snapshot.command = session->command;
    snapshot.cgroup = session->peer.cgroup;
    snapshot.owner = session->owner;
    snapshot.mps = session->mps;
    snapshot.device_max_connections = session->device_max_connections;
    snapshot.age_seconds = SecondsSince(session->since);
    snapshot.groups = static_cast<uint32_t>(session->groups.size());
    snapshot.tensors = static_cast<uint32_t>(session->tensors.size());
    snapshot.registrations = static_cast<uint32_t>(session->registrations.size());
    snapshot.channels = static_cast<uint32_t>(session->channels.size());
    snapshot.suspends = session->suspends;
    if (session->checkpoint.since.has_value())
      snapshot.checkpointed_seconds = std::max(SecondsSince(*session->checkpoint.since), 1e-3);
    for (const auto& [tensor_id, tensor] : session->tensors) snapshot.bytes += tensor->bytes;
    snapshot.descriptors =
        static_cast<uint32_t>(1 + session->channels.size() + session->transfers.descriptors());
    for (const auto& [registration_id, registration] : session->registrations) {
      snapshot.registered_bytes += registration.bytes;
      snapshot.descriptors += static_cast<uint32_t>(registration.fds.size());
    }
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

std::vector<GroupSnapshot> Inspector::SnapshotGroups() {
  RegistryLock lock(core_.registry);
  std::vector<GroupSnapshot> snapshots;
  for (const auto& [id, group] : core_.registry.groups) {
    GroupSnapshot snapshot;
    snapshot.id = id;
    snapshot.name = group->name;
    snapshot.uid = group->payer.uid;
    snapshot.incarnation = group->incarnation;
    snapshot.generation = group->generation;
    snapshot.world_size = static_cast<int>(group->members.size());
    snapshot.state = ShownState(group->state());
    snapshot.state_reason = group->state() == GroupState::kSuspended ? "an engine is restarting"
                            : group->state() == GroupState::kAsleep  ? "its ranks have suspended it"
                                                                     : group->lifecycle.why().message();
    for (const StallLifecycle* stall : {&group->client.stall, &group->engine_stall}) {
      if (snapshot.state_reason.empty() && stall->stalled())
        snapshot.state_reason = "stalled, its ranks have to renew it: " + stall->why().message();
    }
    if (snapshot.state_reason.empty()) snapshot.state_reason = group->ClientWaits();
    snapshot.topology_class = group->topology_class;
    for (size_t rank = 0; rank < group->members.size(); ++rank) {
      const MemberRecord& member = group->members[rank];
      snapshot.members.push_back({static_cast<int>(rank), member.session_id, member.pid, member.gpu,
                                  core_.options.topology.gpus[static_cast<size_t>(member.gpu)].uuid,
                                  member.left});
    }
    snapshot.plans = static_cast<uint32_t>(group->plans.size());
    snapshot.workspace_bytes = group->WorkspaceBytes();
    snapshot.unshared_workspace_bytes = group->UnsharedWorkspaceBytes();
    snapshot.bulk_bytes = group->bulk_bytes;
    snapshot.client_launches = group->ClientLaunches();
    if (group->state() == GroupState::kAsleep)
      snapshot.asleep_seconds = SecondsSince(group->suspension->since);
    snapshots.push_back(std::move(snapshot));
  }
  // Ranks that still meet: the operator's first question is who is missing.
  for (const auto& [scope, name] : core_.registry.names) {
    if (!name.joining || name.joining->Empty()) continue;
    GroupSnapshot snapshot;
    snapshot.incarnation = name.incarnation + 1;
    snapshot.world_size = static_cast<int>(name.joining->world());
    snapshot.state = ShownState(GroupState::kInstalling);
    for (size_t rank = 0; rank < name.joining->world(); ++rank) {
      if (!name.joining->Taken(rank)) continue;
      const JoinParty& party = name.joining->parties[rank];
      const PeerIdentity& peer = party.session->peer;
      snapshot.name = party.request.name();
      snapshot.uid = peer.uid;
      snapshot.members.push_back(
          {static_cast<int>(rank), party.session->id, peer.pid, party.gpu, party.request.gpu_uuid(), false});
    }
    snapshot.state_reason = "waits for " + RankList(name.joining->Missing());
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

std::vector<PoolSnapshot> Inspector::SnapshotPools() {
  RegistryLock lock(core_.registry);
  std::vector<PoolSnapshot> pools;
  for (int gpu = 0; gpu < core_.options.topology.size(); ++gpu) {
    PoolSnapshot pool;
    pool.gpu = gpu;
    pool.gpu_uuid = core_.options.topology.gpus[static_cast<size_t>(gpu)].uuid;
    pool.memory_bytes = core_.options.topology.gpus[static_cast<size_t>(gpu)].memory_bytes;
    for (const auto& set : core_.registry.sets) {
      for (size_t rank = 0; rank < set->gpus.size(); ++rank) {
        if (set->gpus[rank] != gpu || set->dropped) continue;
        const uint64_t used = set->purpose == "symmetric" ? set->allocator.used() : set->bytes;
        pool.segments.push_back({set->segment_ids[rank], set->bytes, used, set->group_id, set->purpose});
        pool.segment_bytes += set->bytes;
        pool.used_bytes += used;
      }
    }
    for (const auto& [id, session] : core_.registry.sessions) {
      for (const auto& [registration_id, registration] : session->registrations) {
        if (registration.gpu == gpu) pool.registered_bytes += registration.bytes;
      }
    }
    std::sort(pool.segments.begin(), pool.segments.end(),
              [](const auto& a, const auto& b) { return a.id < b.id; });
    pools.push_back(std::move(pool));
  }
  return pools;
}

PlanPage Inspector::SnapshotPlans(const PlanQuery& query) {
  const bool commands_too = query.programs || query.steps;
  PlanPage page;
  std::vector<std::vector<std::string>> commands;
  {
    RegistryLock lock(core_.registry);
    size_t bytes = 0;
    for (auto at = core_.registry.groups.lower_bound(query.after_group);
         at != core_.registry.groups.end() && !page.more; ++at) {
      const auto& [id, group] = *at;
      if (query.group_id != 0 && id != query.group_id) continue;
      if (query.viewer && !query.viewer(group->payer.uid)) continue;
      const bool begun = id == query.after_group;
      for (auto plan = begun ? group->plans.upper_bound(query.after_plan) : group->plans.begin();
           plan != group->plans.end(); ++plan) {
        const PlanRecord& record = plan->second;
        if (query.plan_id != 0 && plan->first != query.plan_id) continue;
        if (query.only != nullptr && !query.only->contains(plan->first)) continue;
        if (bytes >= query.most_bytes) {
          page.more = true;
          break;
        }
        bytes += record.info.size() + (commands_too ? record.kept_bytes : 0);
        PlanSnapshot snapshot;
        snapshot.plan_id = plan->first;
        snapshot.group_id = id;
        snapshot.uid = group->payer.uid;
        snapshot.group_name = group->name;
        snapshot.gpus = group->gpus;
        snapshot.info = record.info;
        snapshot.group_workspace_bytes = group->WorkspaceBytes();
        snapshot.unshared_workspace_bytes = group->UnsharedWorkspaceBytes();
        page.plans.push_back(std::move(snapshot));
        if (commands_too) commands.push_back(record.commands);
      }
    }
  }
  // Listings are made outside of the lock: they are long.
  for (size_t i = 0; i < commands.size(); ++i) {
    for (const std::string& text : commands[i]) {
      engine::v1::Command command;
      if (!command.ParseFromString(text)) continue;
      Result<plan::RankProgram> program = plan::DecodeProgram(command.add_plan().program());
      PlanSnapshot& snapshot = page.plans[i];
      if (query.programs)
        snapshot.programs.push_back(program.ok() ? plan::ListProgram(*program) : program.status().ToString());
      std::vector<std::string>& names = snapshot.steps.emplace_back();
      if (!program.ok()) continue;
      for (const plan::Step& step : program->steps) {
        names.push_back(step.label.empty() ? std::string(plan::StepKindName(step)) : step.label);
      }
    }
  }
  return page;
}

std::vector<ChannelSnapshot> Inspector::SnapshotChannels() {
  RegistryLock lock(core_.registry);
  std::vector<ChannelSnapshot> snapshots;
  for (const auto& [id, session] : core_.registry.sessions) {
    for (const auto& [channel_id, channel] : session->channels) {
      snapshots.push_back({channel_id, id, channel.gpu, channel.over});
    }
  }
  return snapshots;
}

}  // namespace tandem::daemon
