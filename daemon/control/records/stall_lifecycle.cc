#include "daemon/control/records/stall_lifecycle.h"

namespace tandem::daemon {

const char* StallStateName(StallState state) {
  switch (state) {
    case StallState::kRunning: return "running";
    case StallState::kStalled: return "stalled";
  }
  return "unknown";
}

const char* StallEventName(StallEvent event) {
  switch (event) {
    case StallEvent::kLaunchFailed: return "launch failed";
    case StallEvent::kRenewed: return "renewed";
    case StallEvent::kEnginesRestarted: return "engines restarted";
  }
  return "unknown";
}

void StallLifecycle::Apply(StallEvent event, const Status& why) {
  const StallState before = state_;
  state_ = NextState(kStallTransitions, before, event).value_or(before);
  if (state_ == StallState::kRunning) why_ = Status::Ok();
  if (before == StallState::kRunning && stalled()) why_ = why;
}

void StallLifecycle::TakeOver(const Status& why) {
  state_ = why.ok() ? StallState::kRunning : StallState::kStalled;
  why_ = why;
}

}  // namespace tandem::daemon
