#include "runtime/client_launch_state.h"

#include <optional>

namespace tandem::runtime {

const char* ClientLaunchStateName(ClientLaunchState state) {
  switch (state) {
    case ClientLaunchState::kRunning: return "running";
    case ClientLaunchState::kFailing: return "failing";
    case ClientLaunchState::kAwaitingVerdict: return "awaiting verdict";
    case ClientLaunchState::kStalled: return "stalled";
    case ClientLaunchState::kRenewing: return "renewing";
    case ClientLaunchState::kOver: return "over";
  }
  return "unknown";
}

const char* ClientLaunchEventName(ClientLaunchEvent event) {
  switch (event) {
    case ClientLaunchEvent::kLaunchFailed: return "launch failed";
    case ClientLaunchEvent::kReported: return "reported";
    case ClientLaunchEvent::kVerdict: return "verdict";
    case ClientLaunchEvent::kVerdictLate: return "verdict late";
    case ClientLaunchEvent::kLaunchRefused: return "launch refused";
    case ClientLaunchEvent::kRenewalBegun: return "renewal begun";
    case ClientLaunchEvent::kRenewed: return "renewed";
    case ClientLaunchEvent::kRenewalFailed: return "renewal failed";
    case ClientLaunchEvent::kSessionOver: return "session over";
    case ClientLaunchEvent::kContextLost: return "context lost";
  }
  return "unknown";
}

bool ClientLaunchLifecycle::Apply(ClientLaunchEvent event, const Status& why) {
  std::lock_guard lock(mutex_);
  const std::optional<ClientLaunchState> next =
      NextState(kClientLaunchTransitions, state_.load(std::memory_order_relaxed), event);
  if (!next.has_value()) return false;
  if (event == ClientLaunchEvent::kRenewed) {
    failure_ = Status::Ok();
  } else if (!why.ok() && failure_.ok()) {
    failure_ = why;
    ++failures_;
  }
  state_.store(*next, std::memory_order_release);
  return true;
}

bool ClientLaunchLifecycle::AwaitsVerdict() const {
  const ClientLaunchState now = state();
  return now == ClientLaunchState::kFailing || now == ClientLaunchState::kAwaitingVerdict;
}

Status ClientLaunchLifecycle::failure() const {
  if (state() == ClientLaunchState::kRunning) return Status::Ok();
  std::lock_guard lock(mutex_);
  return failure_;
}

uint64_t ClientLaunchLifecycle::failures() const {
  std::lock_guard lock(mutex_);
  return failures_;
}

}  // namespace tandem::runtime
