// File: launch_state.h
//
// The states of a launch on this rank. A plan has one launch at a time; its state changes in
// LaunchProgress::Advance and nowhere else.
//
//   state    | meaning                                          | left by
//   ---------|--------------------------------------------------|-------------------------------------
//   kNone    | the plan has no launch on this rank              | arrive: kArrived
//   kArrived | this rank's stream is there, nothing is on lanes | start: kStarted, hold: kHeld, refuse: kNone
//   kHeld    | START is in the log, its chunks are awaited      | start: kStarted, refuse: kNone
//   kStarted | START is in the log, the program is on lanes     | complete: kNone, fail: kFailing
//   kFailing | the program is on lanes, the launch has failed   | complete: kNone
//
// Refused arrivals (an older generation, a broken group, wrong bindings, an overlap) never become a launch:
// they end in the call that brings them.
#pragma once

#include <cstdint>

namespace tandem::engine {

enum class LaunchState : uint8_t {
  // The plan may be removed, and its next launch may arrive.
  kNone,
  // The status record is not written yet and no lane knows of the launch, so the CPU can still end it
  // alone. Nothing of a launch goes onto lanes in this state: a lane must never wait for a rank that may
  // not come. (A speculative launch waits for this engine's own CPU.)
  kArrived,
  // Only a program that meets no peer and reads a client's words. It goes onto lanes once all words are
  // written: no lane ever waits for a client. Until then the CPU can end it alone.
  kHeld,
  // The status record says OK. The peers' programs may wait for this one, so only the lanes can end it, and
  // a failure must break the whole group.
  kStarted,
  // The status record says why. The lanes still hold the program: they end by themselves, or are released
  // once all peers have marked their launches too.
  kFailing,
};

enum class LaunchEvent : uint8_t {
  // This rank's stream has reached the launch, and its bindings are right. Peers may count on this rank from
  // here on.
  kArrive,
  // The log ends the launch before its START, or a break, a rank that left or the plan's removal does.
  // Nothing has run.
  kRefuse,
  // The log says START, and the client has not announced all chunks of an operand.
  kHold,
  // The log says START: all engines of the group start this launch, in the same order.
  kStart,
  // The group breaks while the program is on lanes, or the program could not be enqueued whole.
  kFail,
  // The completion word has reached the launch's ticket. A program without steps completes as soon as it
  // starts.
  kComplete,
};

// Whether the table has such a row; `*next` is the state that it leads to.
constexpr bool NextState(LaunchState from, LaunchEvent event, LaunchState* next) {
  using S = LaunchState;
  using E = LaunchEvent;
  const auto leads = [&](E wanted, S to) {
    if (event != wanted) return false;
    *next = to;
    return true;
  };
  switch (from) {
    case S::kNone: return leads(E::kArrive, S::kArrived);
    case S::kArrived:
      return leads(E::kStart, S::kStarted) || leads(E::kHold, S::kHeld) || leads(E::kRefuse, S::kNone);
    case S::kHeld: return leads(E::kStart, S::kStarted) || leads(E::kRefuse, S::kNone);
    case S::kStarted: return leads(E::kComplete, S::kNone) || leads(E::kFail, S::kFailing);
    case S::kFailing: return leads(E::kComplete, S::kNone);
  }
  return false;
}

// "arrived", "start": for people.
const char* NameOf(LaunchState state);
const char* NameOf(LaunchEvent event);

// The state of one launch.
class LaunchProgress {
 public:
  LaunchState state() const { return state_; }
  // Takes the table's row. A row that does not exist is a bug of this engine: it ends the process, since what
  // the peers believe of this rank would not hold any more.
  void Advance(LaunchEvent event) {
    if (!NextState(state_, event, &state_)) EndByBug(event);
  }

 private:
  [[noreturn]] void EndByBug(LaunchEvent event) const;

  LaunchState state_ = LaunchState::kNone;
};

}  // namespace tandem::engine
