// File: engine_queues.h
//
// All engines' queues, asked at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/supervisor/engines.h"

namespace tandem::daemon {

struct EngineQueue {
  std::unique_ptr<engine::v1::Queue> queue;  // null if the engine gave none
  std::string why_none;  // then: "is down", "does not run: its process 4711 is stopped (SIGSTOP)"
  EngineStatus status;
};

// By GPU. Engines are asked side by side, so that one that does not answer costs one engine's deadline; an
// engine whose process is stopped is not asked at all.
std::vector<EngineQueue> AskQueues(Engines& engines);

}  // namespace tandem::daemon
