// File: node_setup.h
//
// From the configuration to what tandemd's parts are made with: backend, topology, engines' settings, quotas.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/control/control_options.h"
#include "daemon/supervisor/engine_keeper.h"
#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct NodeChoice {
  std::string backend;  // "host" or "cuda"
  Topology topology;
};
// Decides `auto` and reads or makes the topology. FAILED_PRECONDITION says what is missing.
Result<NodeChoice> ChooseNode(const Config& config);

// What the engines have in common; the program is looked for where FindEngineProgram says.
Result<EngineSettings> EngineSettingsOf(const Config& config, const NodeChoice& node);

ControlOptions ControlOptionsOf(const Config& config, const NodeChoice& node, const std::string& version);

}  // namespace tandem::daemon
