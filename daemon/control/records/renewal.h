// File: renewal.h
//
// `Renewal`: one attempt of a group's ranks to renew it (docs/client-placement.md, which has the same table).
// The ranks meet twice.
//
// Thread rule: under the registry's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "common/transition_table.h"
#include "daemon/control/base/barrier.h"
#include "daemon/control/base/registry_mutex.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class RenewalState : uint8_t {
  kStopping,         // ranks stop their launches: the first meeting
  kRenewingEngines,  // all have stopped, and the engines set the counts of all plans
  kSettingCounters,  // ranks set their counters to `number`: the second meeting
  kRenewed,          // launches run
  kFailed,           // every rank begins again
};

enum class RenewalEvent : uint8_t {
  kAllStopped,      // the last rank has stopped
  kEnginesRenewed,  // the engines launch again, or the group's launches do not need them
  kAllReady,        // the last rank has set its counters
  kFailed,          // a rank is late or begins again, an engine was restarted, or the group is over
};

using RenewalTransition = Transition<RenewalState, RenewalEvent>;

// The legal transitions, with the reason of each.
inline constexpr auto kRenewalTransitions = [] {
  using S = RenewalState;
  using E = RenewalEvent;
  return std::to_array<RenewalTransition>({
      // No launch is under way on any rank, so that the engines may change counts.
      {S::kStopping, E::kAllStopped, S::kRenewingEngines},
      // `number` lies behind every number that a word can hold.
      {S::kRenewingEngines, E::kEnginesRenewed, S::kSettingCounters},
      // No packet of an earlier launch is left on any rank.
      {S::kSettingCounters, E::kAllReady, S::kRenewed},
      // A step is of all ranks or of none.
      {S::kStopping, E::kFailed, S::kFailed},
      {S::kRenewingEngines, E::kFailed, S::kFailed},
      {S::kSettingCounters, E::kFailed, S::kFailed},
  });
}();

// As people read it: "setting counters", "all stopped".
const char* RenewalStateName(RenewalState state);
const char* RenewalEventName(RenewalEvent event);

class Renewal {
 public:
  // Called with a text for each illegal transition: the state stays as it was.
  using IllegalHandler = std::function<void(const std::string&)>;
  // `name`: the group, for messages. `world`: its ranks.
  Renewal(size_t world, const std::string& name, IllegalHandler illegal);

  // Makes the transition of the table. False for an illegal one.
  bool Apply(RenewalEvent event) TANDEM_REQUIRES(registry_mutex);
  // Ends a meeting that still waits for ranks, and with it the attempt, for `why`. Work of engines that is
  // under way ends by itself.
  void EndGathering(const Status& why) TANDEM_REQUIRES(registry_mutex);

  RenewalState state() const TANDEM_REQUIRES(registry_mutex) { return state_; }
  // It may still succeed.
  bool UnderWay() const TANDEM_REQUIRES(registry_mutex) {
    return state_ != RenewalState::kRenewed && state_ != RenewalState::kFailed;
  }

  Barrier stopped;  // no launch is under way
  Barrier ready;    // all counters stand at `number`
  uint64_t number TANDEM_GUARDED_BY(registry_mutex) = 0;

 private:
  const IllegalHandler illegal_;
  RenewalState state_ TANDEM_GUARDED_BY(registry_mutex) = RenewalState::kStopping;
};

}  // namespace tandem::daemon
