// File: stall_lifecycle.h
//
// `StallLifecycle`: whether a ready group's launches of one placement run. A group has two: for launches on
// its members' own streams, and for launches on engines. A stalled group lives on, with its plans and memory,
// and its ranks renew it (records/renewal.h). docs/client-placement.md has the same table.
//
// Thread rule: under the registry's mutex.
#pragma once

#include <array>
#include <cstdint>

#include "common/transition_table.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class StallState : uint8_t {
  kRunning,  // launches run
  kStalled,  // launches end with the reason
};

enum class StallEvent : uint8_t {
  kLaunchFailed,      // a launch has failed, and later ones would meet the wrong ones of the peers
  kRenewed,           // all ranks have renewed the group
  kEnginesRestarted,  // the next engines know of no failure
};

using StallTransition = Transition<StallState, StallEvent>;

// All pairs, with the reason of each.
inline constexpr auto kStallTransitions = [] {
  using S = StallState;
  using E = StallEvent;
  return std::to_array<StallTransition>({
      {S::kRunning, E::kLaunchFailed, S::kStalled},
      // The first reason stands; the others follow from it.
      {S::kStalled, E::kLaunchFailed, S::kStalled},
      {S::kStalled, E::kRenewed, S::kRunning},
      // Ranks may renew a group that has not failed.
      {S::kRunning, E::kRenewed, S::kRunning},
      // Launches begin anew under the next generation.
      {S::kStalled, E::kEnginesRestarted, S::kRunning},
      {S::kRunning, E::kEnginesRestarted, S::kRunning},
  });
}();

// As people read it: "stalled", "launch failed".
const char* StallStateName(StallState state);
const char* StallEventName(StallEvent event);

class StallLifecycle {
 public:
  // Makes the transition of the table. `why`: the reason of a failure, not OK. Without effect for other
  // events.
  void Apply(StallEvent event, const Status& why = Status::Ok());
  // The reason that an earlier tandemd has left (docs/restart.md); OK: launches run.
  void TakeOver(const Status& why);

  StallState state() const { return state_; }
  bool stalled() const { return state_ == StallState::kStalled; }
  // The reason while it is stalled; else OK.
  const Status& why() const { return why_; }

 private:
  StallState state_ = StallState::kRunning;
  Status why_;
};

}  // namespace tandem::daemon
