#include "daemon/control/records/group_lifecycle.h"

namespace tandem::daemon {

const char* GroupStateName(GroupState state) {
  switch (state) {
    case GroupState::kInstalling: return "installing";
    case GroupState::kDoomed: return "doomed";
    case GroupState::kReady: return "ready";
    case GroupState::kSuspended: return "suspended";
    case GroupState::kAsleep: return "asleep";
    case GroupState::kClosing: return "closing";
    case GroupState::kBroken: return "broken";
    case GroupState::kEnded: return "ended";
  }
  return "unknown";
}

const char* GroupEventName(GroupEvent event) {
  switch (event) {
    case GroupEvent::kInstalled: return "installed";
    case GroupEvent::kEngineEnded: return "engine ended";
    case GroupEvent::kRestored: return "restored";
    case GroupEvent::kPutToSleep: return "put to sleep";
    case GroupEvent::kWoken: return "woken";
    case GroupEvent::kRankLeft: return "rank left";
    case GroupEvent::kFailed: return "failed";
    case GroupEvent::kEnded: return "ended";
  }
  return "unknown";
}

std::optional<GroupState> NextGroupState(GroupState from, GroupEvent event) {
  return NextState(kGroupTransitions, from, event);
}

void GroupLifecycle::TakeOver(GroupState state, const Status& why) {
  state_ = state;
  why_ = why;
  over_ = !why.ok();
}

bool GroupLifecycle::Apply(GroupEvent event, const Status& why) {
  const std::optional<GroupState> next = NextGroupState(state_, event);
  if (!next.has_value()) {
    if (illegal_) {
      illegal_(std::string("illegal transition: '") + GroupEventName(event) + "' of a group that is " +
               GroupStateName(state_));
    }
    return false;
  }
  const bool replaces = state_ == GroupState::kClosing && event == GroupEvent::kFailed;
  if (!why.ok() && (why_.ok() || replaces)) {
    why_ = why;
    over_ = true;
  }
  state_ = *next;
  return true;
}

}  // namespace tandem::daemon
