// File: speculative_launch.h
//
// `SpeculativeLaunch`: the first kernel of the launch that is expected next goes onto lane 0 before its
// launch has arrived, behind a wait for a word that this engine's CPU writes when the log says START. That
// write takes a fraction of what launching a kernel does.
//
//   lane 0:  wait go · first kernel
//   then, at START:  go = turn · the rest of the program · completion · done
//
// No peer knows of it: the log decides what starts, and in which order. If anything else is to go onto the
// lanes first, the kernel is cancelled: its guard is raised, and it is let go to do nothing.
//
//   state       | meaning                                         | left by
//   ------------|-------------------------------------------------|--------------------------------
//   kNone       | lane 0 holds no first kernel                    | enqueue: kWaiting, or
//               |                                                 | kCancelling if it fails
//   kWaiting    | the kernel waits for the go word                | use: kNone, cancel: kCancelling
//   kCancelling | the kernel is let go, and may still look at its | lane 0 has passed it: kNone
//               | guard in its group's memory                     |
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/launch/launch.h"
#include "engine/launch/launch_timing.h"
#include "engine/launch/program_lanes.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

// The launch that is expected next: what its START would enqueue, and the forecast that expects it.
struct ExpectedLaunch {
  InstalledPlan* plan = nullptr;
  uint64_t launch_number = 0;
  std::vector<runtime::SlotAddress> slots;
  std::vector<std::shared_ptr<Registration>> pins;
  std::shared_ptr<Forecast> forecast;
};

class SpeculativeLaunch {
 public:
  // All outlive it.
  SpeculativeLaunch(Backend* backend, ProgramLanes* lanes, LaunchTiming* timing, StatsArea* stats)
      : backend_(backend), lanes_(lanes), timing_(timing), stats_(stats) {}

  // True while a first kernel waits on lane 0.
  bool Waiting() const { return state_ == State::kWaiting; }
  // True while lane 0 holds no first kernel, none that was cancelled either: another may be enqueued.
  bool None();
  // True once lane 0 has passed the kernel that was cancelled last: the memory that its guard lies in may go.
  bool Passed() { return None() || Waiting(); }

  // Enqueues the first kernel of `expected`, the plan's next launch. Only while None(). False if lane 0 or
  // the kernel refuses: then the plan is not tried again.
  bool Enqueue(ExpectedLaunch expected);
  // The plan's launch starts. True if its first kernel waits on lane 0 with the same launch number and
  // addresses: the kernel is let go, and the rest of the program is to be enqueued; the launch takes over its
  // events. Else `*cancelled` has the status of cancelling the other kernel that waits, if one does.
  // `lanes_busy`: programs are on the lanes.
  bool Use(InstalledPlan* plan, bool lanes_busy, Status* cancelled);
  // Cancels the kernel that waits, if one does: before calls that may block behind a lane, too. After an
  // error lane 0 is not usable any more.
  Status Cancel();
  Status CancelIfOf(const InstalledPlan& plan) {
    return Waiting() && expected_.plan == &plan ? Cancel() : Status::Ok();
  }
  // Cancels a kernel that has waited for so long that its channel does other work now.
  Status CancelIfOld(uint64_t now_ns);

 private:
  enum class State : uint8_t { kNone, kWaiting, kCancelling };

  // The word that cancels the kernel of a turn: one of the own rank's words in the group.
  static Word* GuardWord(const EngineGroup& group, uint64_t turn);
  // Lets lane 0 write that it has passed the kernel of this turn.
  Status EnqueuePassed();

  Backend* backend_;
  ProgramLanes* lanes_;
  LaunchTiming* timing_;
  StatsArea* stats_;

  State state_ = State::kNone;
  ExpectedLaunch expected_;  // while kWaiting
  uint64_t turn_ = 0;        // of the last kernel: the go word's value that lets it go
  uint64_t since_ns_ = 0;    // when it was enqueued
  // Of a launch that is to be timed; the first stands between the go word and the kernel.
  TimingEvents events_;
};

}  // namespace tandem::engine
