#include "daemon/control/records/suspension.h"

#include <optional>

namespace tandem::daemon {
namespace {

// "rank 2 did not … within 2 s".
constexpr std::array<const char*, kSuspensionSteps> kVerbs = {"stop its launches", "unmap its memory",
                                                              "resume", "map its memory"};

}  // namespace

const char* SuspensionStateName(SuspensionState state) {
  switch (state) {
    case SuspensionState::kStopping: return "stopping";
    case SuspensionState::kUnmapping: return "unmapping";
    case SuspensionState::kAsleep: return "asleep";
    case SuspensionState::kMaking: return "making";
    case SuspensionState::kMapping: return "mapping";
    case SuspensionState::kAwake: return "awake";
  }
  return "unknown";
}

const char* SuspensionEventName(SuspensionEvent event) {
  switch (event) {
    case SuspensionEvent::kAllStopped: return "all stopped";
    case SuspensionEvent::kAllUnmapped: return "all unmapped";
    case SuspensionEvent::kAllResuming: return "all resuming";
    case SuspensionEvent::kMade: return "made";
    case SuspensionEvent::kAllMapped: return "all mapped";
    case SuspensionEvent::kFailed: return "failed";
  }
  return "unknown";
}

bool Suspension::Apply(SuspensionEvent event) {
  const std::optional<SuspensionState> next = NextState(kSuspensionTransitions, state_, event);
  if (next.has_value()) {
    state_ = *next;
  } else if (illegal_) {
    illegal_(std::string("illegal transition: '") + SuspensionEventName(event) +
             "' of a suspension that is " + SuspensionStateName(state_));
  }
  return next.has_value();
}

std::shared_ptr<Barrier> Suspension::Meeting(SuspensionStep step) {
  const auto index = static_cast<size_t>(step);
  std::shared_ptr<Barrier>& meeting = meetings_[index];
  if (meeting == nullptr || meeting->over())
    meeting = std::make_shared<Barrier>(world_, "suspension of group '" + name_ + "'", kVerbs[index]);
  return meeting;
}

void Suspension::EndGathering(const Status& why) {
  for (const auto& meeting : meetings_) {
    if (meeting != nullptr) meeting->EndGathering(why);
  }
}

}  // namespace tandem::daemon
