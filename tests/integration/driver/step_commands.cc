// A program of steps, which an operator may suspend between two of them.
#include "tests/integration/driver/commands.h"

namespace tandem::driver {

// Makes steps of the commands "each", until the program has slept "sleeps" times and has made "after" steps more, or
// "most" steps in all.
Status Session::RunSteps(const json& command, json* reply) {
  const json each = command.value("each", json::array());
  const int sleeps = command.value("sleeps", 1), after = command.value("after", 3);
  const int64_t most = command.value("most", int64_t{1} << 40);
  const bool keep = command.value("keep", true);
  const int64_t first = command.value("first", int64_t{-1});  // the number of the first step; -1: not given
  int slept = 0, left = after;
  int64_t steps = 0;
  for (; steps < most && (slept < sleeps || left > 0); ++steps) {
    if (client_->IsAskedToSuspend(first < 0 ? -1 : first + steps)) {
      TANDEM_ASSIGN_OR_RETURN(const bool has_slept, client_->SuspendAsAsked(keep));
      if (has_slept) (*reply)["slept_at"].push_back(steps);
      slept += has_slept ? 1 : 0;
    }
    if (slept >= sleeps) --left;
    for (const json& one : each) {
      json ignored;
      TANDEM_RETURN_IF_ERROR(Execute(one, &ignored));
    }
  }
  (*reply)["steps"] = steps;
  (*reply)["slept"] = slept;
  return Status::Ok();
}

}  // namespace tandem::driver
