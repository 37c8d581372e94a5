// File: client_launch_state.h
//
// `ClientLaunchLifecycle`: the state of one rank's client-placed launches in one group, and the only function
// that changes it. docs/client-placement.md has the same table.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "common/transition_table.h"
#include "tandem/status.h"

namespace tandem::runtime {

enum class ClientLaunchState : uint8_t {
  kRunning,          // launches are made
  kFailing,          // a launch of this rank has failed, and its report is not on its way yet
  kAwaitingVerdict,  // tandemd gets the report, and has not named the cause yet
  kStalled,          // launches return the kept failure until a renewal
  kRenewing,         // this rank has stopped, and the renewal has not ended on all ranks
  kOver,             // no renewal helps: the session has ended, or the GPU's context is lost
};

enum class ClientLaunchEvent : uint8_t {
  kLaunchFailed,   // a launch of this rank has failed
  kReported,       // its report is on the way to tandemd
  kVerdict,        // the verdict page ends the launch, and names the cause
  kVerdictLate,    // no verdict came in time
  kLaunchRefused,  // this rank's library has refused a launch that the peers make
  kRenewalBegun,   // this rank has stopped its launches for a renewal
  kRenewed,        // all ranks have renewed the group
  kRenewalFailed,  // the renewal has not ended on all ranks
  kSessionOver,    // nobody writes verdicts any more
  kContextLost,    // the GPU's context is gone, and all launches with it
};

using ClientLaunchTransition = Transition<ClientLaunchState, ClientLaunchEvent>;

// All transitions, with the reason of each. An event that a state does not list changes nothing, because
// another thread's event came first.
inline constexpr auto kClientLaunchTransitions = [] {
  using S = ClientLaunchState;
  using E = ClientLaunchEvent;
  return std::to_array<ClientLaunchTransition>({
      // The first failed launch decides; later ones follow from it.
      {S::kRunning, E::kLaunchFailed, S::kFailing},
      {S::kFailing, E::kReported, S::kAwaitingVerdict},
      // Another rank has reported first: there is nothing to report.
      {S::kFailing, E::kVerdict, S::kStalled},
      {S::kAwaitingVerdict, E::kVerdict, S::kStalled},
      // The failure that this rank has seen stands for the cause.
      {S::kAwaitingVerdict, E::kVerdictLate, S::kStalled},
      // The peers would pair their launches with the wrong ones of this rank.
      {S::kRunning, E::kLaunchRefused, S::kStalled},
      {S::kFailing, E::kLaunchRefused, S::kStalled},
      {S::kAwaitingVerdict, E::kLaunchRefused, S::kStalled},

      // A group that has not failed may be renewed too. A failure without its cause is judged first: tandemd
      // takes the report before the renewal that answers it.
      {S::kRunning, E::kRenewalBegun, S::kRenewing},
      {S::kStalled, E::kRenewalBegun, S::kRenewing},
      // A peer has begun again, and so does this rank.
      {S::kRenewing, E::kRenewalBegun, S::kRenewing},
      {S::kRenewing, E::kRenewed, S::kRunning},
      // The ranks' counters may differ, so no launch is made before the next renewal.
      {S::kRenewing, E::kRenewalFailed, S::kStalled},

      {S::kRunning, E::kSessionOver, S::kOver},
      {S::kFailing, E::kSessionOver, S::kOver},
      {S::kAwaitingVerdict, E::kSessionOver, S::kOver},
      {S::kStalled, E::kSessionOver, S::kOver},
      {S::kRenewing, E::kSessionOver, S::kOver},
      {S::kRunning, E::kContextLost, S::kOver},
      {S::kFailing, E::kContextLost, S::kOver},
      {S::kAwaitingVerdict, E::kContextLost, S::kOver},
      {S::kStalled, E::kContextLost, S::kOver},
      {S::kRenewing, E::kContextLost, S::kOver},
      // Launches that were under way end now, with the reason.
      {S::kOver, E::kVerdict, S::kOver},
      {S::kOver, E::kContextLost, S::kOver},
  });
}();

// As people read it: "awaiting verdict", "launch refused".
const char* ClientLaunchStateName(ClientLaunchState state);
const char* ClientLaunchEventName(ClientLaunchEvent event);

// Thread-safe.
class ClientLaunchLifecycle {
 public:
  // Makes the transition of the table. `why` becomes the failure, unless one is kept already; the first cause
  // stands until a renewal. False, and nothing changes, for an event that the state does not list.
  bool Apply(ClientLaunchEvent event, const Status& why = Status::Ok());

  ClientLaunchState state() const { return state_.load(std::memory_order_acquire); }
  // A launch has failed, and the cause is not known yet.
  bool AwaitsVerdict() const;
  // How launches that were under way have failed; OK while they have not.
  Status failure() const;
  // How many failures have been kept; 0: none.
  uint64_t failures() const;

 private:
  std::atomic<ClientLaunchState> state_{ClientLaunchState::kRunning};  // written under `mutex_`
  mutable std::mutex mutex_;
  Status failure_;
  uint64_t failures_ = 0;
};

}  // namespace tandem::runtime
