// What operators see and do: drain, and snapshots of everything.
#include <algorithm>

#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "program/program_codec.h"

namespace tandem::daemon {
namespace {

const char* StateName(GroupState state) {
  switch (state) {
    case GroupState::kJoining: return "joining";
    case GroupState::kReady: return "ready";
    case GroupState::kBroken: return "broken";
    case GroupState::kClosing: return "closing";
  }
  return "unknown";
}

double SecondsSince(Waiter::Clock::time_point since) {
  return std::chrono::duration<double>(Waiter::Clock::now() - since).count();
}

}  // namespace

void Control::SetDraining(bool draining) {
  Lock lock(registry_->mutex);
  if (registry_->draining == draining) return;
  registry_->draining = draining;
  registry_->engines_changed.notify_all();
  if (!draining) return;
  v1::Event event;
  event.set_kind(v1::Event::DRAINING);
  event.set_rank(-1);
  event.mutable_status()->set_code(static_cast<int>(Code::kUnavailable));
  event.mutable_status()->set_reason("DRAINING");
  event.mutable_status()->set_message("the daemon is draining: no new sessions, groups or plans");
  for (const auto& [id, session] : registry_->sessions) PostEventLocked(*session, event);
}

std::pair<uint64_t, uint64_t> Control::WaitDrained(const Waiter& waiter) {
  Lock lock(registry_->mutex);
  waiter.Wait(lock, registry_->engines_changed,
              [&] { return registry_->groups.empty() || !registry_->draining || registry_->stopping; });
  return {registry_->sessions.size(), registry_->groups.size()};
}

ControlSnapshot Control::Snapshot() {
  Lock lock(registry_->mutex);
  ControlSnapshot snapshot;
  snapshot.instance_id = instance_id_;
  snapshot.uptime_seconds = SecondsSince(started_);
  snapshot.draining = registry_->draining;
  snapshot.sessions = registry_->sessions.size();
  snapshot.groups = registry_->groups.size();
  snapshot.sessions_total = registry_->sessions_total;
  snapshot.sessions_lost_total = registry_->sessions_lost_total;
  snapshot.groups_broken_total = registry_->groups_broken_total;
  snapshot.launch_failures = registry_->launch_failures;
  for (const auto& [id, group] : registry_->groups) snapshot.plans += group->plans.size();
  for (const auto& [id, session] : registry_->sessions) {
    snapshot.tensors += session->tensors.size();
    snapshot.registrations += session->registrations.size();
    snapshot.channels += session->channels.size();
    ++snapshot.sessions_by_uid[session->peer.uid];
  }
  snapshot.names = registry_->names.size();
  for (const auto& set : registry_->sets) snapshot.segment_bytes += set->bytes * set->segment_ids.size();
  snapshot.descriptors = registry_->ledger.Total(Resource::kDescriptors);
  return snapshot;
}

std::vector<SessionSnapshot> Control::SnapshotSessions() {
  Lock lock(registry_->mutex);
  std::vector<SessionSnapshot> snapshots;
  for (const auto& [id, session] : registry_->sessions) {
    SessionSnapshot snapshot;
    snapshot.id = id;
    snapshot.uid = session->peer.uid;
    snapshot.gid = session->peer.gid;
    snapshot.pid = session->peer.pid;
    snapshot.name = session->name;
    snapshot.command = session->command;
    snapshot.cgroup = session->peer.cgroup;
    snapshot.mps = session->mps;
    snapshot.device_max_connections = session->device_max_connections;
    snapshot.age_seconds = SecondsSince(session->since);
    snapshot.groups = static_cast<uint32_t>(session->groups.size());
    snapshot.tensors = static_cast<uint32_t>(session->tensors.size());
    snapshot.registrations = static_cast<uint32_t>(session->registrations.size());
    snapshot.channels = static_cast<uint32_t>(session->channels.size());
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

std::vector<GroupSnapshot> Control::SnapshotGroups() {
  Lock lock(registry_->mutex);
  std::vector<GroupSnapshot> snapshots;
  for (const auto& [id, group] : registry_->groups) {
    GroupSnapshot snapshot;
    snapshot.id = id;
    snapshot.name = group->name;
    snapshot.uid = group->payer.uid;
    snapshot.incarnation = group->incarnation;
    snapshot.generation = group->generation;
    snapshot.world_size = static_cast<int>(group->members.size());
    snapshot.state = StateName(group->state);
    snapshot.state_reason =
        group->broken.ok() && group->suspended ? "an engine is restarting" : group->broken.message();
    snapshot.topology_class = group->topology_class;
    for (size_t rank = 0; rank < group->members.size(); ++rank) {
      const Member& member = group->members[rank];
      snapshot.members.push_back({static_cast<int>(rank), member.session_id, member.pid, member.gpu,
                                  options_.topology.gpus[static_cast<size_t>(member.gpu)].uuid, member.left});
    }
    snapshot.plans = static_cast<uint32_t>(group->plans.size());
    snapshot.workspace_bytes = 2 * group->half_bytes;
    snapshot.unshared_workspace_bytes = group->unshared_bytes;
    snapshot.bulk_bytes = group->bulk_bytes;
    snapshots.push_back(std::move(snapshot));
  }
  // Ranks that still meet: the operator's first question is who is missing.
  for (const auto& [scope, entry] : registry_->names) {
    if (!entry.joining || entry.joining->seats.empty()) continue;
    const v1::JoinGroupRequest& request = entry.joining->seats.begin()->second.request;
    GroupSnapshot snapshot;
    snapshot.name = request.name();
    snapshot.uid = entry.joining->seats.begin()->second.session->peer.uid;
    snapshot.incarnation = entry.incarnation + 1;
    snapshot.world_size = request.world_size();
    snapshot.state = StateName(GroupState::kJoining);
    std::string missing;
    for (int rank = 0; rank < request.world_size(); ++rank) {
      auto seat = entry.joining->seats.find(rank);
      if (seat == entry.joining->seats.end()) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
        continue;
      }
      snapshot.members.push_back({rank, seat->second.session->id, seat->second.session->peer.pid,
                                  seat->second.gpu, seat->second.request.gpu_uuid(), false});
    }
    snapshot.state_reason = "waits for rank " + missing;
    snapshots.push_back(std::move(snapshot));
  }
  return snapshots;
}

std::vector<PoolSnapshot> Control::SnapshotPools() {
  Lock lock(registry_->mutex);
  std::vector<PoolSnapshot> pools;
  for (int gpu = 0; gpu < options_.topology.size(); ++gpu) {
    PoolSnapshot pool;
    pool.gpu = gpu;
    pool.gpu_uuid = options_.topology.gpus[static_cast<size_t>(gpu)].uuid;
    pool.memory_bytes = options_.topology.gpus[static_cast<size_t>(gpu)].memory_bytes;
    for (const auto& set : registry_->sets) {
      for (size_t rank = 0; rank < set->gpus.size(); ++rank) {
        if (set->gpus[rank] != gpu) continue;
        const uint64_t used = set->purpose == "symmetric" ? set->allocator.used() : set->bytes;
        pool.segments.push_back({set->segment_ids[rank], set->bytes, used, set->group_id, set->purpose});
        pool.segment_bytes += set->bytes;
        pool.used_bytes += used;
      }
    }
    for (const auto& [id, session] : registry_->sessions) {
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

std::vector<PlanSnapshot> Control::SnapshotPlans() { return SnapshotPlans(PlanQuery()).plans; }

PlanPage Control::SnapshotPlans(const PlanQuery& query) {
  const bool commands_too = query.programs || query.steps;
  PlanPage page;
  std::vector<std::vector<std::string>> commands;
  {
    Lock lock(registry_->mutex);
    size_t bytes = 0;
    for (auto at = registry_->groups.lower_bound(query.after_group);
         at != registry_->groups.end() && !page.more; ++at) {
      const auto& [id, group] = *at;
      if (query.group_id != 0 && id != query.group_id) continue;
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
        snapshot.group_name = group->name;
        for (const Member& member : group->members) snapshot.gpus.push_back(member.gpu);
        snapshot.info = record.info;
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

std::vector<ChannelSnapshot> Control::SnapshotChannels() {
  Lock lock(registry_->mutex);
  std::vector<ChannelSnapshot> snapshots;
  for (const auto& [id, session] : registry_->sessions) {
    for (const auto& [channel_id, channel] : session->channels) {
      snapshots.push_back({channel_id, id, channel.gpu, channel.over});
    }
  }
  return snapshots;
}

}  // namespace tandem::daemon
