#include "daemon/admin/admin_service.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/log.h"
#include "daemon/admin/engine_queues.h"
#include "daemon/observe/plan_totals.h"
#include "daemon/topology/topology_file.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/op_request.h"

namespace tandem::daemon {

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message());
}

namespace {

void FillLinks(const AdminSources& sources, const Viewer& viewer, size_t reply_bytes,
               admin::v1::GetStatsReply* reply) {
  for (const LinkRate& link : sources.links) {
    auto* out = reply->add_links();
    out->set_from_gpu_uuid(link.from);
    out->set_to_gpu_uuid(link.to);
    out->set_gb_per_second(link.gb_per_second);
  }
  std::map<uint64_t, std::vector<int>> gpus_of_plan;
  std::map<uint64_t, std::pair<std::string, std::string>> names;  // group and summary
  for (const PlanSnapshot& plan : sources.control->SnapshotPlans()) {
    if (!viewer.Sees(plan.uid)) continue;
    gpus_of_plan[plan.plan_id] = plan.gpus;
    v1::PlanInfo info;
    if (info.ParseFromString(plan.info)) names[plan.plan_id] = {plan.group_name, info.summary()};
  }
  std::vector<std::string> uuids;
  for (const GpuInfo& gpu : sources.topology.gpus) uuids.push_back(gpu.uuid);
  ReplyBudget budget(reply_bytes);
  for (const SentRate& rate : SentRates(ReadAllPlans(sources.stats), gpus_of_plan, uuids, sources.links)) {
    if (!gpus_of_plan.contains(rate.plan_id) && !viewer.sees_all()) continue;
    admin::v1::SentStats out;
    out.set_plan_id(rate.plan_id);
    out.set_group_name(names[rate.plan_id].first);
    out.set_summary(names[rate.plan_id].second);
    out.set_rank(rate.rank);
    out.set_gpu_uuid(uuids[static_cast<size_t>(rate.gpu)]);
    out.set_bytes(rate.bytes);
    out.set_gb_per_second(rate.gb_per_second);
    out.set_link_gb_per_second(rate.link_gb_per_second);
    out.set_link_fraction(rate.link_fraction);
    if (!AddWithin(budget, reply->mutable_sent(), std::move(out))) break;
  }
  reply->set_truncated(budget.cut());
}

}  // namespace

Viewer AdminService::ViewerOf(const grpc::ServerContext* context) const {
  return viewer_ ? viewer_(context == nullptr ? std::string() : context->peer()) : Viewer::OfAll();
}

grpc::Status AdminService::GetTopology(grpc::ServerContext*, const admin::v1::GetTopologyRequest*,
                                       admin::v1::GetTopologyReply* reply) {
  reply->set_topology_toml(WriteTopology(sources_.topology));
  reply->set_topology_class(std::string(TopologyClassName(Classify(sources_.topology))));
  return grpc::Status::OK;
}

grpc::Status AdminService::GetHealth(grpc::ServerContext*, const admin::v1::GetHealthRequest*,
                                     admin::v1::GetHealthReply* reply) {
  Health health = GatherHealth(sources_);
  reply->set_live(health.live);
  reply->set_ready(health.ready);
  for (std::string& reason : health.reasons) reply->add_reasons(std::move(reason));
  const std::map<int, std::string> cordoned = sources_.control->Snapshot().cordoned_gpus;
  const std::vector<GpuCondition> conditions =
      sources_.gpu_watch == nullptr ? std::vector<GpuCondition>() : sources_.gpu_watch->Conditions();
  for (size_t gpu = 0; gpu < sources_.topology.gpus.size(); ++gpu) {
    admin::v1::GpuHealth* out = reply->add_gpus();
    out->set_gpu(static_cast<uint32_t>(gpu));
    out->set_gpu_uuid(sources_.topology.gpus[gpu].uuid);
    if (const auto found = cordoned.find(static_cast<int>(gpu)); found != cordoned.end())
      out->set_cordoned(found->second);
    if (gpu >= conditions.size()) continue;
    for (const auto& [kind, text] : FaultsOf(conditions[gpu])) {
      out->add_faults(text);
      out->add_kinds(std::string(GpuFaultName(kind)));
    }
    for (const auto& [xid, count] : conditions[gpu].xids) (*out->mutable_xids())[xid] = count;
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::Doctor(grpc::ServerContext* context, const admin::v1::DoctorRequest*,
                                  admin::v1::DoctorReply* reply) {
  for (DoctorFinding& finding : Diagnose(GatherDoctor(sources_, ViewerOf(context)))) {
    auto* out = reply->add_findings();
    out->set_severity(static_cast<admin::v1::Finding::Severity>(finding.severity));
    out->set_check(std::move(finding.check));
    out->set_message(std::move(finding.message));
    out->set_advice(std::move(finding.advice));
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::ListSessions(grpc::ServerContext* context, const admin::v1::ListSessionsRequest*,
                                        admin::v1::ListSessionsReply* reply) {
  const Viewer viewer = ViewerOf(context);
  ReplyBudget budget(reply_bytes_);
  std::vector<SessionSnapshot> sessions = sources_.control->SnapshotSessions();
  reply->set_hidden(std::erase_if(sessions, [&](const auto& session) { return !viewer.Sees(session.uid); }));
  for (const SessionSnapshot& session : sessions) {
    admin::v1::Session out;
    out.set_id(session.id);
    out.set_uid(session.uid);
    out.set_gid(session.gid);
    out.set_pid(session.pid);
    out.set_name(log::OneLine(session.name));
    out.set_age_seconds(session.age_seconds);
    out.set_groups(session.groups);
    out.set_tensors(session.tensors);
    out.set_registrations(session.registrations);
    out.set_channels(session.channels);
    out.set_bytes(session.bytes);
    out.set_descriptors(session.descriptors);
    out.set_cgroup(session.cgroup);
    out.set_owner(session.owner);
    out.set_command(session.command);
    out.set_suspends(session.suspends);
    out.set_checkpointed_seconds(session.checkpointed_seconds);
    if (session.mps.answers) out.set_mps(session.mps.directory);
    if (!AddWithin(budget, reply->mutable_sessions(), std::move(out))) break;
  }
  reply->set_truncated(budget.cut());
  return grpc::Status::OK;
}

grpc::Status AdminService::ListGroups(grpc::ServerContext* context, const admin::v1::ListGroupsRequest*,
                                      admin::v1::ListGroupsReply* reply) {
  std::map<uint64_t, uint64_t> group_of_plan, launches;
  auto plans = ReadAllPlans(sources_.stats);
  for (const auto& gpu : plans) {
    for (const auto& plan : gpu) group_of_plan[plan.plan_id] = plan.group_id;
  }
  for (const auto& [plan, totals] : SumPlans(plans)) launches[group_of_plan[plan]] += totals.launches;
  const Viewer viewer = ViewerOf(context);
  ReplyBudget budget(reply_bytes_);
  std::vector<GroupSnapshot> groups = sources_.control->SnapshotGroups();
  reply->set_hidden(std::erase_if(groups, [&](const auto& group) { return !viewer.Sees(group.uid); }));
  for (const GroupSnapshot& group : groups) {
    admin::v1::Group out;
    out.set_id(group.id);
    out.set_name(group.name);
    out.set_uid(group.uid);
    out.set_incarnation(group.incarnation);
    out.set_world_size(group.world_size);
    out.set_state(group.state);
    out.set_state_reason(group.state_reason);
    out.set_topology_class(group.topology_class);
    out.set_asleep_seconds(group.asleep_seconds);
    for (const MemberSnapshot& member : group.members) {
      auto* to = out.add_members();
      to->set_rank(member.rank);
      to->set_session_id(member.session_id);
      to->set_pid(member.pid);
      to->set_gpu_uuid(member.gpu_uuid);
      to->set_left(member.left);
    }
    out.set_plans(group.plans);
    out.set_workspace_bytes(group.workspace_bytes);
    out.set_unshared_workspace_bytes(group.unshared_workspace_bytes);
    out.set_bulk_bytes(group.bulk_bytes);
    out.set_launches(launches[group.id]);
    out.set_client_launches(group.client_launches);
    if (!AddWithin(budget, reply->mutable_groups(), std::move(out))) break;
  }
  reply->set_truncated(budget.cut());
  return grpc::Status::OK;
}

grpc::Status AdminService::ListPools(grpc::ServerContext* context, const admin::v1::ListPoolsRequest*,
                                     admin::v1::ListPoolsReply* reply) {
  const Viewer viewer = ViewerOf(context);
  const std::set<uint64_t> seen = viewer.Seen(sources_.control->SnapshotGroups());
  ReplyBudget budget(reply_bytes_);
  for (const PoolSnapshot& pool : sources_.control->SnapshotPools()) {
    auto* out = reply->add_pools();
    out->set_gpu_uuid(pool.gpu_uuid);
    out->set_memory_bytes(pool.memory_bytes);
    out->set_segment_bytes(pool.segment_bytes);
    out->set_used_bytes(pool.used_bytes);
    out->set_registered_bytes(pool.registered_bytes);
    for (const SegmentSnapshot& segment : pool.segments) {
      if (!viewer.sees_all() && !seen.contains(segment.group_id)) {
        reply->set_hidden(reply->hidden() + 1);
        continue;
      }
      admin::v1::SegmentInfo to;
      to.set_id(segment.id);
      to.set_bytes(segment.bytes);
      to.set_used_bytes(segment.used_bytes);
      to.set_group_id(segment.group_id);
      to.set_purpose(segment.purpose);
      if (!AddWithin(budget, out->mutable_segments(), std::move(to))) break;
    }
  }
  reply->set_truncated(budget.cut());
  return grpc::Status::OK;
}

grpc::Status AdminService::GetQueue(grpc::ServerContext* context, const admin::v1::GetQueueRequest*,
                                    admin::v1::GetQueueReply* reply) {
  const Viewer viewer = ViewerOf(context);
  const std::set<uint64_t> seen = viewer.Seen(sources_.control->SnapshotGroups());
  std::map<uint64_t, std::pair<std::string, std::string>> plans;  // group and summary
  for (const PlanSnapshot& plan : sources_.control->SnapshotPlans()) {
    v1::PlanInfo info;
    if (info.ParseFromString(plan.info)) plans[plan.plan_id] = {plan.group_name, info.summary()};
  }
  ReplyBudget budget(reply_bytes_);
  const std::vector<EngineQueue> queues = AskQueues(*sources_.engines);
  for (size_t gpu = 0; gpu < queues.size(); ++gpu) {
    if (queues[gpu].queue == nullptr) {
      auto* silent = reply->add_silent();
      silent->set_gpu_uuid(sources_.topology.gpus[gpu].uuid);
      silent->set_gpu(static_cast<uint32_t>(gpu));
      silent->set_pid(queues[gpu].status.pid);
      silent->set_reason("the " + EngineName(sources_.topology, gpu) + " " + queues[gpu].why_none);
      continue;
    }
    for (const auto& item : queues[gpu].queue->items()) {
      if (!viewer.sees_all() && !seen.contains(item.group_id())) {
        reply->set_hidden(reply->hidden() + 1);
        continue;
      }
      admin::v1::QueueEntry out;
      out.set_gpu_uuid(sources_.topology.gpus[gpu].uuid);
      out.set_plan_id(item.plan_id());
      out.set_group_id(item.group_id());
      out.set_group_name(plans[item.plan_id()].first);
      out.set_summary(plans[item.plan_id()].second);
      out.set_launch(item.launch());
      out.set_state(item.started() ? "started" : "waiting");
      out.set_since_seconds(item.since_seconds());
      *out.mutable_late_ranks() = item.missing_ranks();
      out.set_awaits(item.awaits());
      out.set_session_id(item.session_id());
      if (!AddWithin(budget, reply->mutable_entries(), std::move(out))) break;
    }
  }
  reply->set_truncated(budget.cut());
  return grpc::Status::OK;
}

grpc::Status AdminService::GetStats(grpc::ServerContext* context, const admin::v1::GetStatsRequest*,
                                    admin::v1::GetStatsReply* reply) {
  ControlSnapshot control = sources_.control->Snapshot();
  ProcessInfo process = ReadProcessInfo();
  reply->set_uptime_seconds(control.uptime_seconds);
  reply->set_version(sources_.version);
  reply->set_instance_id(control.instance_id);
  reply->set_backend(sources_.backend);
  reply->set_draining(control.admission == Admission::kDraining);
  reply->set_cordoned(control.admission != Admission::kOpen);
  reply->set_sessions(control.sessions);
  reply->set_groups(control.groups);
  reply->set_plans(control.plans);
  reply->set_segment_bytes(control.segment_bytes);
  reply->set_descriptors(process.descriptors);
  reply->set_rss_bytes(process.rss_bytes);
  std::map<int, uint64_t> channels;
  for (const auto& channel : sources_.control->SnapshotChannels())
    channels[channel.gpu] += channel.over ? 0 : 1;
  uint64_t launches = 0, failures = 0;
  for (int gpu = 0; gpu < sources_.engines->count(); ++gpu) {
    EngineStatus status = sources_.engines->StatusOf(gpu);
    auto* out = reply->add_engines();
    out->set_gpu_uuid(sources_.topology.gpus[gpu].uuid);
    out->set_pid(status.pid);
    out->set_generation(status.generation);
    out->set_state(EngineStateName(status.state));
    out->set_restarts(status.restarts);
    out->set_last_exit(status.lingers.empty() ? status.last_exit : status.lingers);
    out->set_own_memory_bytes(status.own_memory_bytes);
    out->set_blocked(status.blocked);
    if (status.mps.answers) out->set_mps(status.mps.directory);
    out->set_channels(channels[gpu]);
    const StatsArea& area = sources_.stats[gpu];
    out->set_launches(area.Launches());
    out->set_failures(area.Failures());
    out->set_busy_seconds(area.BusyNs() * 1e-9);
    out->set_speculated(area.Speculated());
    out->set_cancelled(area.Cancelled());
    launches += area.Launches();
    failures += area.Failures();
  }
  reply->set_launches(launches);
  reply->set_failures(failures);
  FillLinks(sources_, ViewerOf(context), reply_bytes_ / 2, reply);
  return grpc::Status::OK;
}

}  // namespace tandem::daemon
