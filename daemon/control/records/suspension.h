// File: suspension.h
//
// `Suspension`: the sleep of a group, from its ranks' first call to suspend it until they have resumed it
// (docs/suspend.md, which has the same table). The ranks meet for each step.
//
// Thread rule: under the registry's mutex.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/transition_table.h"
#include "daemon/control/base/barrier.h"
#include "daemon/control/base/registry_mutex.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class SuspensionState : uint8_t {
  kStopping,   // ranks stop their launches
  kUnmapping,  // no launch is under way, and ranks unmap the group's memory
  kAsleep,     // neither ranks nor engines hold memory
  kMaking,     // all ranks have asked for memory, and the engines make it
  kMapping,    // the memory is there, and ranks map it
  kAwake,      // launches run
};

enum class SuspensionEvent : uint8_t {
  kAllStopped,   // the last rank has stopped
  kAllUnmapped,  // the last rank has unmapped the memory, and the engines have dropped it
  kAllResuming,  // the last rank has asked for memory
  kMade,         // the engines hold the group again
  kAllMapped,    // the last rank has mapped the memory and set its counters
  kFailed,       // a rank is late, or the engines cannot make the memory
};

using SuspensionTransition = Transition<SuspensionState, SuspensionEvent>;

// The legal transitions, with the reason of each.
inline constexpr auto kSuspensionTransitions = [] {
  using S = SuspensionState;
  using E = SuspensionEvent;
  return std::to_array<SuspensionTransition>({
      // No kernel reads or writes the memory any more.
      {S::kStopping, E::kAllStopped, S::kUnmapping},
      // Nothing has been taken from any rank: launches go on.
      {S::kStopping, E::kFailed, S::kAwake},
      {S::kUnmapping, E::kAllUnmapped, S::kAsleep},
      // Ranks that have unmapped the memory wake up again, and it is still there.
      {S::kUnmapping, E::kAllResuming, S::kMaking},
      {S::kAsleep, E::kAllResuming, S::kMaking},
      {S::kMaking, E::kMade, S::kMapping},
      // The engines drop memory again that they have made: a group that cannot wake up takes nothing from
      // others.
      {S::kMaking, E::kFailed, S::kAsleep},
      {S::kMapping, E::kAllMapped, S::kAwake},
      // An engine has ended meanwhile, and its successor cannot have the group.
      {S::kMapping, E::kFailed, S::kAsleep},
      // Ranks that could not map the memory go to sleep again.
      {S::kMapping, E::kAllUnmapped, S::kAsleep},
  });
}();

// As people read it: "unmapping", "all resuming".
const char* SuspensionStateName(SuspensionState state);
const char* SuspensionEventName(SuspensionEvent event);

// The meetings of the ranks, in their order.
enum class SuspensionStep : uint8_t { kStopped, kUnmapped, kResuming, kMapped };
inline constexpr size_t kSuspensionSteps = 4;

class Suspension {
 public:
  // Called with a text for each illegal transition: the state stays as it was.
  using IllegalHandler = std::function<void(const std::string&)>;
  // `name`: the group, for messages. `world`: its ranks.
  Suspension(size_t world, std::string name, IllegalHandler illegal)
      : world_(world), name_(std::move(name)), illegal_(std::move(illegal)) {}

  // Makes the transition of the table. False for an illegal one.
  bool Apply(SuspensionEvent event) TANDEM_REQUIRES(registry_mutex);
  // The meeting for `step` that ranks come to now: a fresh one where the last one is over.
  std::shared_ptr<Barrier> Meeting(SuspensionStep step) TANDEM_REQUIRES(registry_mutex);
  // Ends meetings that still wait for ranks, for `why`.
  void EndGathering(const Status& why) TANDEM_REQUIRES(registry_mutex);
  // The state in which an earlier tandemd left it.
  void TakeOver(SuspensionState state) TANDEM_REQUIRES(registry_mutex) { state_ = state; }

  SuspensionState state() const TANDEM_REQUIRES(registry_mutex) { return state_; }

  uint64_t number TANDEM_GUARDED_BY(registry_mutex) = 0;  // of the launch behind which all ranks go on
  // Since when its group sleeps.
  std::chrono::steady_clock::time_point since TANDEM_GUARDED_BY(registry_mutex);
  Status hindered TANDEM_GUARDED_BY(registry_mutex);  // why the last attempt to resume has failed

 private:
  const size_t world_;
  const std::string name_;
  const IllegalHandler illegal_;
  SuspensionState state_ TANDEM_GUARDED_BY(registry_mutex) = SuspensionState::kStopping;
  std::array<std::shared_ptr<Barrier>, kSuspensionSteps> meetings_ TANDEM_GUARDED_BY(registry_mutex);
};

}  // namespace tandem::daemon
