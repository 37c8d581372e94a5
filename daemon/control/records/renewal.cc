#include "daemon/control/records/renewal.h"

#include <optional>
#include <utility>

namespace tandem::daemon {

const char* RenewalStateName(RenewalState state) {
  switch (state) {
    case RenewalState::kStopping: return "stopping";
    case RenewalState::kRenewingEngines: return "renewing engines";
    case RenewalState::kSettingCounters: return "setting counters";
    case RenewalState::kRenewed: return "renewed";
    case RenewalState::kFailed: return "failed";
  }
  return "unknown";
}

const char* RenewalEventName(RenewalEvent event) {
  switch (event) {
    case RenewalEvent::kAllStopped: return "all stopped";
    case RenewalEvent::kEnginesRenewed: return "engines renewed";
    case RenewalEvent::kAllReady: return "all ready";
    case RenewalEvent::kFailed: return "failed";
  }
  return "unknown";
}

Renewal::Renewal(size_t world, const std::string& name, IllegalHandler illegal)
    : stopped(world, "renewal of group '" + name + "'", "stop its launches"),
      ready(world, "renewal of group '" + name + "'", "set its counters"),
      illegal_(std::move(illegal)) {}

bool Renewal::Apply(RenewalEvent event) {
  const std::optional<RenewalState> next = NextState(kRenewalTransitions, state_, event);
  if (next.has_value()) {
    state_ = *next;
  } else if (illegal_) {
    illegal_(std::string("illegal transition: '") + RenewalEventName(event) + "' of a renewal that is " +
             RenewalStateName(state_));
  }
  return next.has_value();
}

void Renewal::EndGathering(const Status& why) {
  stopped.EndGathering(why);
  ready.EndGathering(why);
  if (state_ == RenewalState::kStopping || state_ == RenewalState::kSettingCounters)
    (void)Apply(RenewalEvent::kFailed);
}

}  // namespace tandem::daemon
