// Which of tandemd's commands wait: never is there a call that may stand behind every lane while a parked launch waits on them.
#include <algorithm>
#include <string>
#include <utility>

#include "daemon/engine/engine.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

// Loading kernels, and work that is waited for, may stand behind every lane: never while one waits for ranks.
bool MayBlock(v1::Command::CommandCase command) {
  return command == v1::Command::kAddPlan || command == v1::Command::kProbe || command == v1::Command::kClearMemory;
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
      held_commands_.push_back(std::move(received));
      continue;
    }
    Execute(std::move(received));
  }
  while (!held_commands_.empty() && !queue_->HoldsParked()) {
    any = true;
    queue_->CallOff();
    ReceivedCommand next = std::move(held_commands_.front());
    held_commands_.pop_front();
    Execute(std::move(next));
  }
  return any;
}

bool Engine::ForgetHeldPlan(uint64_t plan_id) {
  auto held = std::find_if(held_commands_.begin(), held_commands_.end(), [plan_id](const ReceivedCommand& received) {
    return received.command->command_case() == v1::Command::kAddPlan &&
           received.command->add_plan().plan_id() == plan_id;
  });
  if (held == held_commands_.end()) return false;
  SendAck(held->command->id(), Aborted("plan " + std::to_string(plan_id) + " was removed before it could be added"));
  held_commands_.erase(held);
  return true;
}

}  // namespace tandem::engine
