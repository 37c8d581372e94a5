// File: barrier.h
//
// `Barrier`: the ranks of a group meet for one thing, a join, a plan or a symmetric tensor. Each rank
// takes its slot. The call that takes the last slot works for all. All ranks get one verdict, with the first
// cause.
//
//   gathering ──(last slot taken)──▶ working ──(its work ends)──▶ over
//       └──(a deadline, a rank's end, a mismatch)──────────────────┘
//
// Thread rule: every function needs the registry's mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <string>
#include <vector>

#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/base/waiter.h"
#include "tandem/status.h"

namespace tandem::daemon {

class Barrier {
 public:
  enum class Phase { kGathering, kWorking, kOver };
  // How a call ends whose deadline passes while another one works for all: by itself, since a repeated call
  // waits on; or with the verdict, where the work itself ends by the first of the ranks' deadlines.
  enum class WhileWorking { kEndsByItself, kAwaitsTheVerdict };

  // For `world` ranks. `what` and `verb` make the text of a late rank: "<what>: rank 2 did not <verb> within
  // 2 s".
  Barrier(size_t world, std::string what, std::string verb,
          WhileWorking while_working = WhileWorking::kEndsByItself);

  size_t world() const { return slots_.size(); }
  Phase phase() const TANDEM_REQUIRES(registry_mutex) { return phase_; }
  bool over() const TANDEM_REQUIRES(registry_mutex) { return phase_ == Phase::kOver; }
  // The verdict of all ranks; OK before the end.
  const Status& verdict() const TANDEM_REQUIRES(registry_mutex) { return verdict_; }

  // Takes `rank`'s slot for a call with this deadline.
  void Take(size_t rank, Waiter::Clock::time_point deadline) TANDEM_REQUIRES(registry_mutex);
  bool Taken(size_t rank) const TANDEM_REQUIRES(registry_mutex) { return slots_[rank].taken; }
  // The rank's call was cancelled, and the rank has not come again.
  bool Withdrew(size_t rank) const TANDEM_REQUIRES(registry_mutex) { return slots_[rank].withdrew; }
  // Gives up the slots whose calls have been cancelled and do not know it yet. Call it before slots are
  // looked at, so that a caller that cancels can rely on it.
  void DropCancelled() TANDEM_REQUIRES(registry_mutex);
  // A rank that gave its slot up is of no concern to the others any more.
  void Forget(size_t rank) TANDEM_REQUIRES(registry_mutex) { slots_[rank].withdrew = false; }
  bool Complete() const TANDEM_REQUIRES(registry_mutex);  // all slots are taken
  bool Empty() const TANDEM_REQUIRES(registry_mutex);     // no slot is taken
  std::vector<uint32_t> Missing() const TANDEM_REQUIRES(registry_mutex);
  // The first of the deadlines of the calls that have taken slots; at least one has.
  Waiter::Clock::time_point FirstDeadline() const TANDEM_REQUIRES(registry_mutex);

  // The caller, who took the last slot, works for all.
  void BeginWork() TANDEM_REQUIRES(registry_mutex) { phase_ = Phase::kWorking; }
  // Ends it for all ranks. The first verdict stands: later ones are ignored.
  void End(const Status& verdict) TANDEM_REQUIRES(registry_mutex);
  // The same while ranks are still missing; work under way goes on.
  void EndGathering(const Status& verdict) TANDEM_REQUIRES(registry_mutex);

  // Waits for the verdict. OK once there is one, also one of failure. A deadline while ranks are missing
  // makes one, for all ranks. Otherwise the status with which this call alone ends: CANCELLED, which gives
  // its slot up while ranks are missing; DEADLINE_EXCEEDED, reason UNDER_WAY, while another call works for
  // all.
  Status Await(RegistryLock& lock, size_t rank, const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);

  // Waits until it is over, and changes nothing else: false if it is not, by `waiter`'s deadline or once the
  // caller has gone.
  bool AwaitEnd(RegistryLock& lock, size_t rank, const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);

  // The rank has the verdict. A late rank gets the verdict of a failed barrier once, and may then open
  // another.
  void Acknowledge(size_t rank) TANDEM_REQUIRES(registry_mutex) { slots_[rank].acknowledged = true; }
  bool Acknowledged(size_t rank) const TANDEM_REQUIRES(registry_mutex) { return slots_[rank].acknowledged; }
  bool AllAcknowledged() const TANDEM_REQUIRES(registry_mutex);

 private:
  struct Slot {
    bool taken = false;
    bool acknowledged = false;
    bool withdrew = false;
    std::vector<const Waiter*> waiting;  // calls in Await: a retry may come while the first call waits
    Waiter::Clock::time_point since, deadline;
  };
  void Withdraw(Slot& slot) TANDEM_REQUIRES(registry_mutex);
  Status LateStatus(size_t rank) const TANDEM_REQUIRES(registry_mutex);

  const std::string what_, verb_;
  const WhileWorking while_working_;
  Phase phase_ TANDEM_GUARDED_BY(registry_mutex) = Phase::kGathering;
  Status verdict_ TANDEM_GUARDED_BY(registry_mutex);
  std::vector<Slot> slots_;  // guarded too, except for its size
  std::condition_variable changed_;
};

}  // namespace tandem::daemon
