// File: group_lifecycle.h
//
// `GroupLifecycle`: the state of one incarnation of a group, and the only function that changes it. The table
// below is complete: an event that it does not list for a state is a defect of tandemd.
//
//   installing ──installed──▶ ready ◀──restored── suspended
//       │                       │ └──engine ended──▶ │ │
//       │ rank gone             │ rank left          │ │
//       ▼                       ▼                    │ │
//     doomed                 closing                 │ │
//       │                       │ failed,            │ │ rank left, failed
//       │                       ▼ engine ended       ▼ ▼
//       │                     broken ◀── failed ── ready, suspended
//       └──────ended─────▶ ended ◀──ended── closing, broken
//
//   ready ◀──woken── asleep ──rank left, failed──▶ broken
//     └──put to sleep──▶
//
// Thread rule: under the registry's mutex, except for Over(), which any thread may call.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "common/transition_table.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class GroupState {
  kInstalling,  // all ranks have come, and the engines are getting the group
  kDoomed,      // a rank has gone meanwhile: the installation is under way still, and will be undone
  kReady,       // the engines hold it, and launches run
  kSuspended,   // an engine has ended: the others forget the group, until it is installed again
  kAsleep,      // its ranks have put it to sleep: no engine has it, until they wake it up
  kClosing,     // a rank has left: launches under way go on, new ones fail with that rank's name
  kBroken,      // it failed: every launch ends with the reason
  kEnded,       // no rank and no engine has it any more
};

enum class GroupEvent {
  kInstalled,    // the engines hold it
  kEngineEnded,  // the engine of a member's GPU has ended
  kRestored,     // the engines hold it again, as the next generation
  kPutToSleep,   // no rank has launches under way, and all want it to sleep
  kWoken,        // the engines hold it again, and all ranks have mapped its memory
  kRankLeft,     // a member has left cleanly
  kFailed,       // a member or a GPU's context was lost, a launch could not end, or restoring failed
  kEnded,        // the last member has gone, or it could not be installed
};

using GroupTransition = Transition<GroupState, GroupEvent>;

// The legal transitions, with the reason of each.
inline constexpr std::array kGroupTransitions = {
    // All engines hold the group: its members may use it.
    GroupTransition{GroupState::kInstalling, GroupEvent::kInstalled, GroupState::kReady},
    // The engines are getting the group, so nothing can be taken back yet; the installing call undoes it.
    GroupTransition{GroupState::kInstalling, GroupEvent::kRankLeft, GroupState::kDoomed},
    GroupTransition{GroupState::kInstalling, GroupEvent::kFailed, GroupState::kDoomed},
    // The installation failed: no member has heard of the group, and the name is free at once.
    GroupTransition{GroupState::kInstalling, GroupEvent::kEnded, GroupState::kEnded},
    // The first cause stands; more ranks may go while the engines receive the group.
    GroupTransition{GroupState::kDoomed, GroupEvent::kRankLeft, GroupState::kDoomed},
    GroupTransition{GroupState::kDoomed, GroupEvent::kFailed, GroupState::kDoomed},
    // The installing call has seen it, and takes everything back.
    GroupTransition{GroupState::kDoomed, GroupEvent::kEnded, GroupState::kEnded},

    // Memory and plans outlive an engine: the group waits for the next one.
    GroupTransition{GroupState::kReady, GroupEvent::kEngineEnded, GroupState::kSuspended},
    // The next engine holds it: launches go on under the next generation.
    GroupTransition{GroupState::kSuspended, GroupEvent::kRestored, GroupState::kReady},

    // Nothing runs, so that nothing is lost with the memory.
    GroupTransition{GroupState::kReady, GroupEvent::kPutToSleep, GroupState::kAsleep},
    GroupTransition{GroupState::kAsleep, GroupEvent::kWoken, GroupState::kReady},
    // It wakes up with all its ranks only.
    GroupTransition{GroupState::kAsleep, GroupEvent::kRankLeft, GroupState::kBroken},
    GroupTransition{GroupState::kAsleep, GroupEvent::kFailed, GroupState::kBroken},

    // Launches under way had all ranks' arrivals and may end; the engines fail later ones with the rank's
    // name.
    GroupTransition{GroupState::kReady, GroupEvent::kRankLeft, GroupState::kClosing},
    // A group without a rank is not installed again. So no engine would fail the
    // others' launches, and they would wait for a restart that never comes: the
    // group breaks.
    GroupTransition{GroupState::kSuspended, GroupEvent::kRankLeft, GroupState::kBroken},
    GroupTransition{GroupState::kClosing, GroupEvent::kEngineEnded, GroupState::kBroken},
    // The others leave too; the first one's name stands.
    GroupTransition{GroupState::kClosing, GroupEvent::kRankLeft, GroupState::kClosing},

    // A rank that will never arrive, or memory that is gone: launches under way must end with the reason.
    GroupTransition{GroupState::kReady, GroupEvent::kFailed, GroupState::kBroken},
    GroupTransition{GroupState::kSuspended, GroupEvent::kFailed, GroupState::kBroken},
    GroupTransition{GroupState::kClosing, GroupEvent::kFailed, GroupState::kBroken},
    // The first cause stands; members of a broken group leave it one by one.
    GroupTransition{GroupState::kBroken, GroupEvent::kFailed, GroupState::kBroken},
    GroupTransition{GroupState::kBroken, GroupEvent::kRankLeft, GroupState::kBroken},

    // The last member has gone: the name is free for the next incarnation.
    GroupTransition{GroupState::kClosing, GroupEvent::kEnded, GroupState::kEnded},
    GroupTransition{GroupState::kBroken, GroupEvent::kEnded, GroupState::kEnded},
};

// As people read it: "suspended", "engine ended".
const char* GroupStateName(GroupState state);
const char* GroupEventName(GroupEvent event);

// No engine has the group, and it may come back to them.
inline bool IsOffEngines(GroupState state) {
  return state == GroupState::kSuspended || state == GroupState::kAsleep;
}

// The state that the table names; nothing if the transition is illegal.
std::optional<GroupState> NextGroupState(GroupState from, GroupEvent event);

class GroupLifecycle {
 public:
  // Called with a text for each illegal transition: the state stays as it was.
  using IllegalHandler = std::function<void(const std::string&)>;
  explicit GroupLifecycle(IllegalHandler illegal) : illegal_(std::move(illegal)) {}

  // Makes the transition of the table. `why` is kept where the group is over by it; the first cause stands,
  // except that a failure takes the place of a rank's leaving. False for an illegal transition.
  bool Apply(GroupEvent event, const Status& why = Status::Ok());

  // The state in which an earlier tandemd left the group (docs/restart.md). Before other threads see it.
  void TakeOver(GroupState state, const Status& why);

  GroupState state() const { return state_; }
  // The cause, once the group is doomed, closing or broken; else OK.
  const Status& why() const { return why_; }
  // Whether there is a cause. Any thread.
  bool Over() const { return over_.load(); }

 private:
  IllegalHandler illegal_;
  GroupState state_ = GroupState::kInstalling;
  Status why_;
  std::atomic<bool> over_ = false;
};

}  // namespace tandem::daemon
