#include "engine/launch/launch_state.h"

#include <cstdio>
#include <cstdlib>

namespace tandem::engine {

const char* NameOf(LaunchState state) {
  switch (state) {
    case LaunchState::kNone: return "none";
    case LaunchState::kArrived: return "arrived";
    case LaunchState::kHeld: return "held";
    case LaunchState::kStarted: return "started";
    case LaunchState::kFailing: return "failing";
  }
  return "unknown";
}

const char* NameOf(LaunchEvent event) {
  switch (event) {
    case LaunchEvent::kArrive: return "arrive";
    case LaunchEvent::kRefuse: return "refuse";
    case LaunchEvent::kHold: return "hold";
    case LaunchEvent::kStart: return "start";
    case LaunchEvent::kFail: return "fail";
    case LaunchEvent::kComplete: return "complete";
  }
  return "unknown";
}

void LaunchProgress::EndByBug(LaunchEvent event) const {
  std::fprintf(stderr, "tandem-engine: a launch in state '%s' cannot %s\n", NameOf(state_), NameOf(event));
  std::abort();
}

}  // namespace tandem::engine
