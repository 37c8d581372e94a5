#include "daemon/observe/health.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace tandem::daemon {

std::string WhyNotReady(const EngineStatus& engine) {
  switch (engine.state) {
    case EngineState::kReady: {
      if (std::string stopped = StoppedProcess(engine.pid); !stopped.empty())
        return "does not run: " + stopped;
      if (engine.silent_seconds <= kSilentEngineSeconds) return "";
      char text[64];
      std::snprintf(text, sizeof text, "has answered nothing for %.0f s", engine.silent_seconds);
      return text;
    }
    case EngineState::kIdle: return "";  // it starts with the next use
    case EngineState::kStarting: return "is starting";
    case EngineState::kDown:
      return engine.blocked.empty() ? "is down" : "cannot start yet: " + engine.blocked;
    case EngineState::kCrashLooped: return "is held down after a crash loop";
  }
  return "is in no known state";
}

Health CheckHealth(const HealthInput& input) {
  Health health;
  health.live = input.live;
  if (!input.live) health.reasons.push_back("tandemd makes no progress");
  if (input.admission == Admission::kDraining)
    health.reasons.push_back("the node drains: it takes no new jobs");
  if (input.admission == Admission::kCordoned)
    health.reasons.push_back("the node is cordoned: it takes no new jobs");
  health.ready = health.reasons.empty();
  int64_t working = static_cast<int64_t>(input.engines.size());
  const int64_t needed = input.engines_needed == 0 ? working : std::min(working, input.engines_needed);
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    const auto cordoned = input.cordoned_gpus.find(static_cast<int>(gpu));
    bool works = cordoned == input.cordoned_gpus.end();
    if (!works) {
      health.reasons.push_back(GpuText(input.topology, gpu) + " is cordoned: it takes no new groups (" +
                               cordoned->second + ")");
    }
    if (std::string why = WhyNotReady(input.engines[gpu]); !why.empty()) {
      health.reasons.push_back("the " + EngineName(input.topology, gpu) + " " + why);
      works = false;
    }
    if (!works) --working;
  }
  for (size_t gpu = 0; gpu < input.gpus.size(); ++gpu) {
    for (const auto& [kind, text] : FaultsOf(input.gpus[gpu]))
      health.reasons.push_back(GpuText(input.topology, gpu) + " " + text);
  }
  health.ready &= working >= needed;
  return health;
}

std::string GpuText(const Topology& topology, size_t gpu) {
  std::string name = "GPU " + std::to_string(gpu);
  if (gpu < topology.gpus.size()) name += " (" + topology.gpus[gpu].uuid + ")";
  return name;
}

std::string EngineName(const Topology& topology, size_t gpu) { return "engine of " + GpuText(topology, gpu); }

std::string StoppedProcess(int pid) {
  if (pid <= 0) return "";
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;  // getline, whose error is no exception: the process may end while its file is read
  std::getline(file, text, '\0');
  // "pid (command) state …"; the command may hold anything, a parenthesis too.
  const size_t end = text.rfind(") ");
  if (end == std::string::npos || end + 2 >= text.size()) return "";
  switch (text[end + 2]) {
    case 'T': return "its process " + std::to_string(pid) + " is stopped (SIGSTOP)";
    case 't': return "its process " + std::to_string(pid) + " is stopped by a debugger";
    default: return "";
  }
}

}  // namespace tandem::daemon
