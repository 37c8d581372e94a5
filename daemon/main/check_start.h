// File: check_start.h
//
// `tandemd --check-config --strict`: what a start would refuse or go without, found out without starting
// anything.
#pragma once

#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/main/node_setup.h"

namespace tandem::daemon {

// Returns a sentence, with the key, for each thing that a start with `config` would miss on this machine.
// Empty: nothing is missing. Checked are the engine program, the backend's GPUs, the topology and tuning
// files, the directories, the group and the metrics' address. Not checked: whether another tandemd runs, and
// whether the metrics' port is taken.
std::vector<std::string> CheckStart(const Config& config, const NodeSources& sources = ThisMachine());

}  // namespace tandem::daemon
