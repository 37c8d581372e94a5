// File: engine_adoption.h
//
// `AdoptEngine`: takes a running engine over from a tandemd that has ended (docs/restart.md).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/supervisor/engine_holdings.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct AdoptedEngine {
  UniqueFd socket;  // the engine takes commands from it
  UniqueFd pidfd;
  pid_t pid = 0;
  std::string build;
  std::map<std::string, uint32_t> versions;  // HandoverVersions() of that build
  engine::v1::Start start;                   // as the engine was started
  engine::v1::Ready ready;
  UniqueFd order_log, stats_area, journal;
  EngineHoldings holdings;
};

// The socket at which the engine of `gpu` waits for the next tandemd.
std::string SuccessorSocketPath(const std::string& admin_directory, int gpu);

// Connects to the engine that waits at `path`, and takes all that it holds. Nothing if no engine is there.
// DEADLINE_EXCEEDED if it does not send all of it in time, INTERNAL if that makes no sense.
Result<std::optional<AdoptedEngine>> AdoptEngine(const std::string& path, std::chrono::milliseconds deadline);

// Asks engines to end, and waits; after `grace` they are killed.
void EndEngines(std::vector<AdoptedEngine> engines, std::chrono::milliseconds grace);

}  // namespace tandem::daemon
