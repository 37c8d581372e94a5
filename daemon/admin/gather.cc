#include <chrono>
#include <utility>

#include "common/unix_group.h"
#include "daemon/admin/admin_service.h"
#include "daemon/admin/engine_queues.h"
#include "daemon/observe/plan_totals.h"
#include "daemon/planner/tuning/tuning_store.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/op_request.h"
#include "tandem/v1/types.pb.h"

namespace tandem::daemon {

namespace {

// The live plans' figures: as many series as plans, which has no bound that suits a fleet.
void AddPlans(const AdminSources& sources, MetricsInput& input) {
  input.plans = ReadAllPlans(sources.stats);
  for (const PlanSnapshot& plan : sources.control->SnapshotPlans()) {
    v1::PlanInfo info;
    if (!info.ParseFromString(plan.info)) continue;
    input.labels[plan.plan_id] = {std::string(OpName(static_cast<Op>(info.op()))),
                                  std::string(AlgorithmName(static_cast<Algorithm>(info.algorithm())))};
    input.gpus_of_plan[plan.plan_id] = plan.gpus;
  }
}

}  // namespace

MetricsInput GatherMetrics(const AdminSources& sources) {
  MetricsInput input;
  input.control = sources.control->Snapshot();
  input.pools = sources.control->SnapshotPools();
  for (int gpu = 0; gpu < sources.engines->count(); ++gpu) {
    input.engines.push_back(sources.engines->StatusOf(gpu));
    input.gpu_uuids.push_back(sources.topology.gpus[gpu].uuid);
  }
  for (size_t gpu = 0; gpu < sources.stats.size(); ++gpu) {
    const StatsArea& area = sources.stats[gpu];
    input.launches.push_back(area.Launches());
    input.failures.push_back(area.Failures());
    input.busy_ns.push_back(area.BusyNs());
    input.speculated.push_back(area.Speculated());
    input.cancelled.push_back(area.Cancelled());
    input.late.push_back(area.Late());
    input.series.push_back(area.ReadSeries());
    const auto failures = area.FailuresByCode();
    for (size_t code = 0; code < failures.size(); ++code) input.failures_by_code[code] += failures[code];
    // The queue of an engine that has ended has ended too.
    const bool ready = input.engines[gpu].state == EngineState::kReady;
    input.queues.push_back(ready ? area.Queue() : QueueState());
  }
  input.now_ns = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                       std::chrono::nanoseconds(1));
  if (sources.metrics_per_plan && sources.metrics_per_plan()) AddPlans(sources, input);
  if (sources.gpu_watch != nullptr) input.gpus = sources.gpu_watch->Conditions();
  input.links = sources.links;
  input.process = ReadProcessInfo();
  input.version = sources.version;
  input.backend = sources.backend;
  return input;
}

Health GatherHealth(const AdminSources& sources) {
  HealthInput input;
  input.live = !sources.alive || sources.alive();
  ControlSnapshot control = sources.control->Snapshot();
  input.admission = control.admission;
  input.cordoned_gpus = std::move(control.cordoned_gpus);
  if (sources.gpu_watch != nullptr) input.gpus = sources.gpu_watch->Conditions();
  input.topology = sources.topology;
  for (int gpu = 0; gpu < sources.engines->count(); ++gpu)
    input.engines.push_back(sources.engines->StatusOf(gpu));
  if (sources.engines_needed) input.engines_needed = sources.engines_needed();
  return CheckHealth(input);
}

DoctorInput GatherDoctor(const AdminSources& sources, const Viewer& viewer) {
  DoctorInput input;
  input.backend = sources.backend;
  input.topology = sources.topology;
  input.failed_links = sources.failed_links;
  if (sources.tuning != nullptr) input.refused_tuning = sources.tuning->refused();
  input.control = sources.control->Snapshot();
  input.groups = sources.control->SnapshotGroups();
  std::erase_if(input.groups, [&](const GroupSnapshot& group) { return !viewer.Sees(group.uid); });
  input.pools = sources.control->SnapshotPools();
  if (sources.gpu_watch != nullptr) input.gpus = sources.gpu_watch->Conditions();
  input.process = ReadProcessInfo();
  input.machine = ReadMachineMemory();
  input.verify_plans = sources.config->testing.verify_plans;
  input.visibility_delay_us = sources.config->testing.visibility_delay_us;
  input.socket_group = sources.config->socket_group;
  input.socket_group_exists = input.socket_group.empty() || FindGroup(input.socket_group).ok();
  input.runtime_dir = sources.config->runtime_dir;
  if (sources.listen_errors) input.listen_errors = sources.listen_errors();
  if (sources.sockets) input.sockets = sources.sockets();
  input.sessions = sources.control->SnapshotSessions();
  for (SessionSnapshot& session : input.sessions) {
    if (!viewer.Sees(session.uid)) session.command = "of another user";
  }
  for (const GpuInfo& gpu : sources.topology.gpus) {
    if (sources.gpu_processes == nullptr) break;
    auto processes = sources.gpu_processes->On(gpu.uuid);
    input.gpu_processes.push_back(processes.ok() ? std::move(*processes) : std::vector<GpuProcess>());
  }
  std::map<uint64_t, std::string> names;
  for (const auto& group : input.groups) names[group.id] = group.name;
  for (EngineQueue& engine : AskQueues(*sources.engines)) {
    const size_t gpu = input.engines.size();
    // An engine that is not ready has a finding for its state.
    input.silent.push_back(engine.status.state == EngineState::kReady ? engine.why_none : "");
    input.engines.push_back(std::move(engine.status));
    if (engine.queue == nullptr) continue;
    for (const auto& item : engine.queue->items()) {
      if (item.started() || item.since_seconds() < 1 || item.missing_ranks().empty()) continue;
      if (!viewer.sees_all() && !names.contains(item.group_id())) continue;
      input.late.push_back({sources.topology.gpus[gpu].uuid,
                            names[item.group_id()],
                            item.plan_id(),
                            item.since_seconds(),
                            {item.missing_ranks().begin(), item.missing_ranks().end()}});
    }
  }
  return input;
}

}  // namespace tandem::daemon
