// The launch queue: launches whose program reads a client's words. They are held until the words are written,
// so that no lane ever waits for a client: the lanes are everybody's.
#include <algorithm>
#include <utility>

#include "engine/launch/launch_outcome.h"
#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

// A look at a word on a GPU takes ten microseconds or more of this thread. A launch that has waited for long
// is looked at less often.
constexpr uint64_t kMinChunkPauseNs = 20'000;
constexpr uint64_t kMaxChunkPauseNs = 1'000'000;

std::string ChunkText(int chunk, size_t chunks) {
  return "chunk " + std::to_string(chunk) + " of " + std::to_string(chunks);
}

}  // namespace

std::string LaunchQueue::AwaitedInput(const InstalledPlan& plan) {
  const Launch& launch = plan.active;
  if (!launch.Is(LaunchState::kHeld)) return {};
  return ChunkText(launch.chunk, plan.program->ChunkSignals(launch.slots).size()) + " of its input";
}

void LaunchQueue::RefuseHeld(InstalledPlan* plan, const Failure& failure) {
  std::erase(held_, plan);
  Refuse(plan, failure);
}

bool LaunchQueue::ServeHeld() {
  const uint64_t now = NowNs();
  bool any = false;
  for (size_t i = 0; i < held_.size();) {
    InstalledPlan* plan = held_[i];
    Launch& launch = plan->active;
    if (now < launch.next_chunk_ns) {
      ++i;
      continue;
    }
    const std::span<const uint32_t> words = plan->program->ChunkSignals(launch.slots);
    Result<uint32_t> word = 1u;
    while (static_cast<size_t>(launch.chunk) < words.size()) {
      word = backend_->LoadWord32(&words[static_cast<size_t>(launch.chunk)]);
      if (!word.ok() || *word == 0) break;
      ++launch.chunk;
    }
    const bool is_late = now - launch.held_ns >= launch.run_limit_ns;
    if (word.ok() && *word == 0 && !is_late) {
      launch.next_chunk_ns = now + std::clamp((now - launch.held_ns) / 8, kMinChunkPauseNs, kMaxChunkPauseNs);
      ++i;
      continue;
    }
    any = true;
    if (word.ok() && *word != 0) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      StartOnLanes(plan);
      continue;
    }
    const Failure failure =
        word.ok()
            ? MakeFailure("CHUNKS_LATE",
                          DeadlineExceeded(LaunchName(*plan, launch.count) + " ended by its deadline: " +
                                           ChunkText(launch.chunk, words.size()) + " of rank " +
                                           std::to_string(plan->group->rank) + "'s input had not come"),
                          plan->group->rank)
            : MakeFailure("LAUNCH_REFUSED",
                          word.status().WithContext(LaunchName(*plan, launch.count) + ": chunk signals"),
                          plan->group->rank);
    listener_->OnLaunchFailed(*plan, launch.count, failure.status);
    RefuseHeld(plan, failure);
  }
  return any;
}

}  // namespace tandem::engine
