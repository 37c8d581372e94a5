// A program of steps, which an operator may suspend between two of them.
#include "tests/integration/driver/commands.h"

namespace tandem::driver {

// A rank is so many steps ahead of what the GPU has run, or fewer.
constexpr int64_t kMaxAhead = 32;

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
    if (each.empty() || (steps + 1) % kMaxAhead != 0) continue;
    json ignored;
    TANDEM_RETURN_IF_ERROR(Execute({{"cmd", "sync"}, {"deadline_ms", 50000}}, &ignored));
  }
  (*reply)["steps"] = steps;
  (*reply)["slept"] = slept;
  return Status::Ok();
}

}  // namespace tandem::driver
