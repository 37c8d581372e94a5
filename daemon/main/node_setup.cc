#include "daemon/main/node_setup.h"

#include <algorithm>
#include <chrono>

#include "common/log.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/topology/topology_file.h"

namespace tandem::daemon {

using std::chrono::milliseconds;

Result<NodeChoice> ChooseNode(const Config& config) {
  NodeChoice node;
  if (config.backend == Backend::kCuda) {
    return FailedPrecondition("this tandemd was built without the CUDA backend: set backend = \"host\" or \"auto\"");
  }
  node.backend = "host";
  if (!config.topology_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(node.topology, LoadTopology(config.topology_file));
    for (GpuInfo& gpu : node.topology.gpus) {
      gpu.memory_bytes = static_cast<uint64_t>(config.emulated_memory_bytes);
    }
  } else {
    node.topology = EmulatedTopology(static_cast<int>(config.emulated_gpus),
                                     static_cast<uint64_t>(config.emulated_memory_bytes));
  }
  if (node.topology.size() == 0) return FailedPrecondition("the topology has no GPU");
  return node;
}

Result<EngineSettings> EngineSettingsOf(const Config& config, const NodeChoice& node) {
  EngineSettings settings;
  TANDEM_ASSIGN_OR_RETURN(settings.program, FindEngineProgram(config.engine_path));
  settings.backend = node.backend;
  settings.hardware_queues = static_cast<uint32_t>(config.hardware_queues);
  settings.visibility_delay_us = static_cast<uint32_t>(config.visibility_delay_us);
  settings.trace_records = static_cast<uint32_t>(config.trace_records);
  settings.restart.backoff_initial = milliseconds(config.supervisor.backoff_initial_ms);
  settings.restart.backoff_max = milliseconds(config.supervisor.backoff_max_ms);
  settings.restart.crash_loop_count = static_cast<int>(config.supervisor.crash_loop_count);
  settings.restart.crash_loop_window = milliseconds(config.supervisor.crash_loop_window_ms);
  settings.log = [](SupervisorLogSeverity severity, const std::string& text) {
    switch (severity) {
      case SupervisorLogSeverity::kInfo: log::Info(text); break;
      case SupervisorLogSeverity::kWarning: log::Warning(text); break;
      case SupervisorLogSeverity::kError: log::Error(text); break;
    }
  };
  return settings;
}

ControlOptions ControlOptionsOf(const Config& config, const NodeChoice& node, const std::string& version) {
  ControlOptions options;
  options.backend = node.backend;
  options.daemon_version = version;
  options.grpc_socket = ClientSocketPath(config);
  options.topology = node.topology;
  options.hardware_queues = static_cast<uint32_t>(config.hardware_queues);
  options.maximal_deadline = milliseconds(config.join_deadline_ms);
  options.default_deadline = std::min(options.default_deadline, options.maximal_deadline);
  options.default_launch_deadline = milliseconds(config.launch_deadline_ms);
  options.verify_plans = config.verify_plans;
  const QuotaConfig& quotas = config.quotas;
  options.limits.sessions = quotas.sessions;
  options.limits.sessions_per_uid = quotas.sessions_per_uid;
  options.limits.groups = quotas.groups;
  options.limits.plans = quotas.plans;
  options.limits.tensors = quotas.tensors;
  options.limits.descriptors = quotas.descriptors;
  options.limits.segment_bytes = quotas.segment_bytes;
  options.limits.registered_bytes = quotas.registered_bytes;
  options.limits.cgroup.sessions = quotas.cgroup_sessions;
  options.limits.cgroup.groups = quotas.cgroup_groups;
  options.limits.cgroup.plans = quotas.cgroup_plans;
  options.limits.cgroup.tensors = quotas.cgroup_tensors;
  options.limits.cgroup.descriptors = quotas.cgroup_descriptors;
  options.limits.cgroup.segment_bytes = quotas.cgroup_segment_bytes;
  options.limits.cgroup.registered_bytes = quotas.cgroup_registered_bytes;
  options.log = [](LogSeverity severity, const std::string& text) {
    switch (severity) {
      case LogSeverity::kDebug: log::Debug(text); break;
      case LogSeverity::kInfo: log::Info(text); break;
      case LogSeverity::kWarning: log::Warning(text); break;
      case LogSeverity::kError: log::Error(text); break;
    }
  };
  return options;
}

}  // namespace tandem::daemon
