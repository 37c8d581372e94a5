#include "engine/launch/launch.h"

#include <time.h>

namespace tandem::engine {

uint64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

runtime::LaunchContext ContextOf(const InstalledPlan& plan, uint64_t launch_number,
                                 std::span<const runtime::SlotAddress> slots) {
  const EngineGroup& group = *plan.group;
  runtime::LaunchContext context;
  context.launch_number = launch_number;
  if (plan.workspace) {
    context.workspace = plan.workspace->half[launch_number & 1];
    context.bulk = plan.workspace->bulk;
  }
  context.signals = group.signals;
  context.slots = slots;
  context.communicator = group.communicator.get();
  context.abort_word = group.abort_word;
  return context;
}

}  // namespace tandem::engine
