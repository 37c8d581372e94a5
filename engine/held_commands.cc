// Which of tandemd's commands wait: never is there a call that may stand behind every lane while a parked
// launch waits on them.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

// How long a command waits for the ranks of a parked launch, at which no deadline runs while none of them has
// come: one of another group, and one of the same group or of none. A group's streams may well be late when
// it prepares its next plan. Both end before tandemd gives a plan up.
constexpr uint64_t kOthersPatienceNs = 1'000'000'000;
constexpr uint64_t kOwnPatienceNs = 20'000'000'000;

// Loading kernels, and work that is waited for, may stand behind every lane: never while one waits for ranks.
bool MayBlock(v1::Command::CommandCase command) {
  return command == v1::Command::kAddPlan || command == v1::Command::kProbe ||
         command == v1::Command::kMeasureLink || command == v1::Command::kClearMemory;
}

// Whose command it is; 0: of no group.
uint64_t GroupOf(const v1::Command& command) {
  return command.has_add_plan() ? command.add_plan().group_id() : 0;
}

}  // namespace

bool Engine::ExecuteCommands() {
  bool any = false;
  ReceivedCommand received;
  while (!stopping_ && link_.Next(&received)) {
    any = true;
    if (queue_) queue_->CallOff();
    const bool waits = !held_commands_.empty() || (queue_ && queue_->HoldsParked());
    if (waits && MayBlock(received.command->command_case())) {
      held_commands_.push_back({std::move(received), NowNs()});
      continue;
    }
    Execute(std::move(received));
  }
  while (!held_commands_.empty() && !queue_->HoldsParked()) {
    any = true;
    queue_->CallOff();
    ReceivedCommand next = std::move(held_commands_.front().received);
    held_commands_.pop_front();
    Execute(std::move(next));
  }
  if (!held_commands_.empty()) EndParkedForHeld();
  return any;
}

void Engine::EndParkedForHeld() {
  const uint64_t now = NowNs();
  for (const HeldCommand& held : held_commands_) {
    const uint64_t group = GroupOf(*held.received.command), waited = now - held.since_ns;
    if (group != 0 && waited >= kOthersPatienceNs) queue_->EndParkedBeside(group);
    if (waited >= kOwnPatienceNs) queue_->EndParkedBeside(0);
  }
}

bool Engine::ForgetHeldPlan(uint64_t plan_id) {
  auto held = std::find_if(held_commands_.begin(), held_commands_.end(), [plan_id](const HeldCommand& each) {
    const v1::Command& command = *each.received.command;
    return command.has_add_plan() && command.add_plan().plan_id() == plan_id;
  });
  if (held == held_commands_.end()) return false;
  SendAck(held->received.command->id(),
          Aborted("plan " + std::to_string(plan_id) + " was removed before it could be added"));
  held_commands_.erase(held);
  return true;
}

}  // namespace tandem::engine
