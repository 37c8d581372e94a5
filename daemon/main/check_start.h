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

// Returns one sentence for each thing that a start with `config` on this machine would miss, each with its
// key: the engine program, the backend's GPUs, the topology and tuning files, the directories, the group, the
// metrics' address. Empty: nothing is missing. It does not check whether another tandemd runs, or whether the
// metrics' port is taken.
std::vector<std::string> CheckStart(const Config& config, const NodeSources& sources = ThisMachine());

}  // namespace tandem::daemon
