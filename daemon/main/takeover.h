// File: takeover.h
//
// The engines and the journal that an earlier tandemd has left (docs/restart.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/config/config.h"
#include "daemon/control/restart/journal.h"
#include "daemon/control/restart/saved_state.h"
#include "daemon/main/node_setup.h"
#include "daemon/supervisor/engine_adoption.h"
#include "daemon/supervisor/engine_keeper.h"

namespace tandem::daemon {

struct Takeover {
  std::vector<std::optional<AdoptedEngine>> engines;  // by GPU; none: it has ended
  UniqueFd order_log;
  UniqueFd journal_fd;  // for engines that are started later
  std::optional<Journal> journal;
  SavedState state;
};

// Looks for engines that wait for this tandemd. Nothing if there are none. Engines that cannot be taken over
// are ended, with one line in the log. They may be of other versions (ipc/handover_versions.h), on other
// GPUs, or have other settings; the journal may be unreadable, or the configuration say so. With the
// directory's lock held.
std::optional<Takeover> TakeOverEngines(const Config& config, const NodeChoice& node,
                                        const EngineSettings& settings, const std::string& build);

}  // namespace tandem::daemon
