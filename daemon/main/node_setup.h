// File: node_setup.h
//
// From the configuration to the arguments of tandemd's parts: backend, topology, engines' settings, quotas.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/control/base/control_options.h"
#include "daemon/supervisor/engine_keeper.h"
#include "daemon/topology/topology.h"
#include "drivers/nvml/nvml.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct NodeChoice {
  std::string backend;  // "host" or "cuda"
  Topology topology;
  std::vector<std::string> notes;  // for the log: values that NVML lacks, why `auto` took the host
};

// The machine as tandemd sees it; a parameter for tests.
struct NodeSources {
  bool cuda_built = false;  // the engine beside this tandemd has the CUDA backend
  std::function<Result<std::unique_ptr<NvmlApi>>()> open_nvml;
  std::optional<std::string> visible_devices = std::nullopt;  // tandemd's own CUDA_VISIBLE_DEVICES
};
// This build's.
NodeSources ThisMachine();

// Decides `auto`: cuda where NVML sees GPUs and the build has CUDA, else host. Reads or makes the topology; a
// topology file over real GPUs gives them its links by position, and they keep their own names.
// FAILED_PRECONDITION names what is missing.
Result<NodeChoice> ChooseNode(const Config& config, const NodeSources& sources = ThisMachine());

// The environment of the engine of `gpu`: it sees that GPU first, then its peers, whose memory it maps.
std::vector<std::string> EngineEnvironment(const NodeChoice& node, const GpuInfo& gpu);

// Settings that all engines have in common. FindEngineProgram finds the program.
Result<EngineSettings> EngineSettingsOf(const Config& config, const NodeChoice& node);

// Where the shipped tuning tables are: the configured directory, or ../share/tandem/tuning beside tandemd's
// own. May not exist.
std::string TuningDirectory(const Config& config);

// The rules with the GPUs' positions. NOT_FOUND names a GPU that the node does not have.
Result<std::vector<AllowRule>> AllowRulesOf(const std::vector<AllowConfig>& rules, const Topology& topology,
                                            const QuotaConfig& quotas);
ControlLimits LimitsOf(const QuotaConfig& quotas);
ControlOptions ControlOptionsOf(const Config& config, const NodeChoice& node, const std::string& version);

}  // namespace tandem::daemon
