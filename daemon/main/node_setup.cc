#include "daemon/main/node_setup.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "common/descriptor_reserve.h"
#include "common/gpu_name.h"
#include "common/log.h"
#include "common/log_share.h"
#include "common/mps_endpoint.h"
#include "daemon/config/allow_rules.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/topology/nvml_topology.h"
#include "daemon/topology/shared_gpus.h"
#include "daemon/topology/topology_file.h"

namespace tandem::daemon {

using std::chrono::milliseconds;

namespace {

#ifdef TANDEM_HAVE_CUDA
constexpr bool kCudaBuilt = true;
#else
constexpr bool kCudaBuilt = false;
#endif

Result<NvmlTopology> ReadGpus(const NodeSources& sources) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<NvmlApi> nvml, sources.open_nvml());
  return BuildNvmlTopology(*nvml, sources.visible_devices);
}

// The file's links for the GPUs that are there: position by position, and never more peer access than there
// is.
Result<Topology> Forced(const Topology& file, const Topology& real, const std::string& path) {
  if (file.size() > real.size()) {
    return FailedPrecondition(path + " describes " + std::to_string(file.size()) + " GPUs; this node has " +
                              std::to_string(real.size()));
  }
  Topology forced = file;
  for (int i = 0; i < file.size(); ++i) {
    const int switch_links = file.gpus[static_cast<size_t>(i)].switch_links;
    forced.gpus[static_cast<size_t>(i)] = real.gpus[static_cast<size_t>(i)];
    forced.gpus[static_cast<size_t>(i)].switch_links = switch_links;
    for (int j = 0; j < file.size(); ++j) forced.p2p[i][j] = file.p2p[i][j] && real.p2p[i][j];
  }
  return forced;
}

Result<NodeChoice> ChooseCuda(const Config& config, const NvmlTopology& found) {
  NodeChoice node{.backend = "cuda", .topology = {}, .notes = found.warnings};
  TANDEM_ASSIGN_OR_RETURN(node.topology,
                          ShareGpus(found.topology, static_cast<int>(config.testing.engines_per_gpu)));
  if (!config.topology_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(Topology file, LoadTopology(config.topology_file));
    TANDEM_ASSIGN_OR_RETURN(node.topology, Forced(file, node.topology, config.topology_file));
    node.notes.push_back("links are forced by " + config.topology_file);
  }
  return node;
}

Result<NodeChoice> ChooseHost(const Config& config) {
  NodeChoice node{.backend = "host", .topology = {}, .notes = {}};
  if (!config.topology_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(node.topology, LoadTopology(config.topology_file));
    for (GpuInfo& gpu : node.topology.gpus) {
      gpu.memory_bytes = static_cast<uint64_t>(config.emulated_memory_bytes);
    }
  } else {
    node.topology = EmulatedTopology(static_cast<int>(config.emulated_gpus),
                                     static_cast<uint64_t>(config.emulated_memory_bytes));
  }
  return node;
}

log::Level LevelOf(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kDebug: return log::Level::kDebug;
    case LogSeverity::kInfo: return log::Level::kInfo;
    case LogSeverity::kWarning: return log::Level::kWarning;
    case LogSeverity::kError: return log::Level::kError;
  }
  return log::Level::kInfo;
}

}  // namespace

NodeSources ThisMachine() {
  return {
      .cuda_built = kCudaBuilt, .open_nvml = [] { return OpenNvml(); }, .visible_devices = VisibleDevices()};
}

Result<NodeChoice> ChooseNode(const Config& config, const NodeSources& sources) {
  if (config.backend == BackendKind::kCuda && !sources.cuda_built) {
    return FailedPrecondition(
        "this tandemd was built without the CUDA backend: set backend = \"host\" or \"auto\"");
  }
  Result<NodeChoice> node = FailedPrecondition("no backend");
  if (config.backend == BackendKind::kHost || !sources.cuda_built) {
    node = ChooseHost(config);
  } else if (Result<NvmlTopology> found = ReadGpus(sources); found.ok()) {
    node = ChooseCuda(config, *found);
  } else if (config.backend == BackendKind::kCuda) {
    return FailedPrecondition("backend = \"cuda\", but there is no GPU that can be used: " +
                              found.status().message());
  } else {
    node = ChooseHost(config);
    if (node.ok()) node->notes.push_back("backend \"auto\" takes the host: " + found.status().message());
  }
  TANDEM_RETURN_IF_ERROR(node.status());
  if (node->topology.size() == 0) return FailedPrecondition("the topology has no GPU");
  return node;
}

std::vector<std::string> EngineEnvironment(const NodeChoice& node, const GpuInfo& gpu) {
  if (node.backend != "cuda") return {};
  // A kernel's loading waits for every stream, so an engine loads its own ones at its start, cuBLASLt's when
  // a plan is prepared and NCCL's with the communicator. EAGER would load all that the libraries have: over
  // ten seconds. Its own GPU comes first: the only one on which it makes a context. It must see the others
  // too. Otherwise the driver does not recognise a peer's memory and copies to it by a kernel, which waits
  // while products hold every SM.
  std::vector<std::string_view> visible = {DeviceUuid(gpu.uuid)};
  for (const GpuInfo& other : node.topology.gpus) {
    const std::string_view device = DeviceUuid(other.uuid);
    if (std::find(visible.begin(), visible.end(), device) == visible.end()) visible.push_back(device);
  }
  std::string list;
  for (const std::string_view device : visible) list += (list.empty() ? "" : ",") + std::string(device);
  // As many hardware queues as there are: lanes must not stand behind one another, nor what releases them. An
  // MPS server has some hundred for all of a GPU's processes, and clients come with 8 each.
  constexpr int64_t kQueues = 32, kQueuesOfAll = 48;
  const int64_t engines =
      std::count_if(node.topology.gpus.begin(), node.topology.gpus.end(),
                    [&](const GpuInfo& other) { return DeviceUuid(other.uuid) == DeviceUuid(gpu.uuid); });
  const int64_t queues = std::min(kQueues, kQueuesOfAll / engines);
  return {"CUDA_VISIBLE_DEVICES=" + list, "CUDA_MODULE_LOADING=LAZY",
          "CUDA_DEVICE_MAX_CONNECTIONS=" + std::to_string(queues)};
}

Result<EngineSettings> EngineSettingsOf(const Config& config, const NodeChoice& node) {
  EngineSettings settings;
  TANDEM_ASSIGN_OR_RETURN(settings.program, FindEngineProgram(config.engine_path));
  settings.backend = node.backend;
  settings.hardware_queues = static_cast<uint32_t>(config.hardware_queues);
  if (node.backend == "cuda") {
    settings.mps_directories.push_back(config.mps.pipe_directory.empty() ? MpsPipeDirectory()
                                                                         : config.mps.pipe_directory);
    if (!config.mps.spare_pipe_directory.empty())
      settings.mps_directories.push_back(config.mps.spare_pipe_directory);
  }
  settings.visibility_delay_us = static_cast<uint32_t>(config.testing.visibility_delay_us);
  settings.trace_records = static_cast<uint32_t>(config.trace_records);
  settings.emulated_fused = config.testing.emulated_fused;
  settings.engines_per_gpu = static_cast<uint32_t>(config.testing.engines_per_gpu);
  settings.speculative_launch = config.speculative_launch;
  settings.restart_grace = milliseconds(config.restart_grace_ms);
  settings.successor_directory = AdminDirectory(config);
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

std::string TuningDirectory(const Config& config) {
  if (!config.tuning_dir.empty()) return config.tuning_dir;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string() : (self.parent_path().parent_path() / "share" / "tandem" / "tuning").string();
}

Result<std::vector<AllowRule>> AllowRulesOf(const std::vector<AllowConfig>& rules, const Topology& topology,
                                            const QuotaConfig& quotas) {
  std::vector<AllowRule> all;
  for (const AllowConfig& from : rules) {
    AllowRule rule{.uid = {}, .gid = {}, .cgroup = from.cgroup};
    if (from.uid.has_value()) rule.uid = static_cast<uint32_t>(*from.uid);
    if (from.gid.has_value()) rule.gid = static_cast<uint32_t>(*from.gid);
    if (!from.quotas.empty()) rule.limits = LimitsOf(config::QuotasOf(from, quotas));
    if (from.gpus.has_value()) rule.gpus.emplace();
    for (const std::string& gpu : from.gpus.value_or(std::vector<std::string>())) {
      const bool is_index = gpu.find_first_not_of("0123456789") == std::string::npos && gpu.size() < 4;
      const Result<int> found = is_index ? Result<int>(std::stoi(gpu)) : topology.Find(gpu);
      if (!found.ok() || *found >= topology.size())
        return NotFound("allow.gpus names GPU " + gpu + ", which this node does not have");
      rule.gpus->insert(*found);
    }
    all.push_back(std::move(rule));
  }
  return all;
}

ControlLimits LimitsOf(const QuotaConfig& quotas) {
  ControlLimits limits;
  limits.sessions = quotas.sessions;
  limits.sessions_per_uid = quotas.sessions_per_uid;
  limits.groups = quotas.groups;
  limits.plans = quotas.plans;
  limits.plan_bytes = quotas.plan_bytes;
  limits.tensors = quotas.tensors;
  limits.descriptors = std::min<uint64_t>(quotas.descriptors, DescriptorsOfOneUser());
  limits.segment_bytes = quotas.segment_bytes;
  limits.registered_bytes = quotas.registered_bytes;
  limits.calls_per_uid = quotas.calls_per_uid;
  limits.cgroup.sessions = quotas.cgroup_sessions;
  limits.cgroup.groups = quotas.cgroup_groups;
  limits.cgroup.plans = quotas.cgroup_plans;
  limits.cgroup.plan_bytes = quotas.cgroup_plan_bytes;
  limits.cgroup.tensors = quotas.cgroup_tensors;
  limits.cgroup.descriptors = quotas.cgroup_descriptors;
  limits.cgroup.segment_bytes = quotas.cgroup_segment_bytes;
  limits.cgroup.registered_bytes = quotas.cgroup_registered_bytes;
  limits.cgroup.calls = quotas.cgroup_calls;
  return limits;
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
  options.suspension_limit = milliseconds(config.suspension_limit_ms);
  options.restart_grace = milliseconds(config.restart_grace_ms);
  options.engine_idle = milliseconds(config.supervisor.engine_idle_ms);
  options.verify_plans = config.testing.verify_plans;
  options.fused_by_choice = config.fused == FusedUse::kAuto;
  options.limits = LimitsOf(config.quotas);
  options.autotune = config.autotune;
  switch (config.placement) {
    case PlacementUse::kAuto: options.placement = plan::PlanPlacement::kAuto; break;
    case PlacementUse::kEngine: options.placement = plan::PlanPlacement::kEngine; break;
    case PlacementUse::kClient: options.placement = plan::PlanPlacement::kClient; break;
  }
  options.determinism = config.determinism;
  options.log = [](LogSeverity severity, const std::string& text) { log::Write(LevelOf(severity), text); };
  options.log_of = [](std::optional<uint32_t> uid, LogSeverity severity, const std::string& text) {
    log::WriteOf(uid.has_value() ? "uid=" + std::to_string(*uid) : "uid=unknown", LevelOf(severity), text);
  };
  return options;
}

}  // namespace tandem::daemon
