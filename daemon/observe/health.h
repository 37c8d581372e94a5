// File: health.h
//
// Whether this node works: what load balancers, orchestrators and `tandemctl health` ask for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/control/base/snapshot.h"
#include "daemon/observe/gpu_health.h"
#include "daemon/supervisor/engines.h"
#include "daemon/topology/topology.h"

namespace tandem::daemon {

struct Health {
  // tandemd makes progress. A restart of tandemd is the cure if it does not.
  bool live = true;
  // New jobs can run on every GPU of the node, or on as many as the node needs to be ready.
  bool ready = true;
  // One sentence for each cause that the node is not ready, not live, or ready on some GPUs only. And one for
  // each fault of a GPU: a fault alone leaves the node ready, because the operator chooses whether jobs run
  // there.
  std::vector<std::string> reasons;
};

struct HealthInput {
  bool live = true;  // Daemon::Alive
  Admission admission = Admission::kOpen;
  Topology topology;
  std::vector<EngineStatus> engines;  // by GPU
  std::vector<GpuCondition> gpus;     // by GPU; empty: GPUs are not watched
  // The reason, by GPU. A cordoned GPU counts as a GPU without an engine.
  std::map<int, std::string> cordoned_gpus;
  // Working engines that a ready node needs; 0, or more than there are: all.
  int64_t engines_needed = 0;
};

// An engine that has been silent for longer counts as not ready: the supervisor asks each engine every two
// seconds.
inline constexpr double kSilentEngineSeconds = 6;

// Reads /proc for engines that are ready (StoppedProcess).
Health CheckHealth(const HealthInput& input);

// "GPU 1 (GPU-5d8f…)", as all findings name a GPU.
std::string GpuText(const Topology& topology, size_t gpu);

// "engine of GPU 1 (GPU-5d8f…)", as all findings name an engine.
std::string EngineName(const Topology& topology, size_t gpu);

// Why an engine takes no work: "is down", "is held down after a crash loop", …; "" for an engine that works.
std::string WhyNotReady(const EngineStatus& engine);

// A process that exists and does not run: "its process 4711 is stopped (SIGSTOP, or a debugger)". "" for any
// other process.
std::string StoppedProcess(int pid);

}  // namespace tandem::daemon
