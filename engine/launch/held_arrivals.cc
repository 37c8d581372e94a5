// Arrivals that come before the engine has noted an end that their client knows of.
//
//   lane 0: … · the program · done · completion
//
// A client that sees done may launch the same plan at once, and by another channel, which waits for nothing
// of the first one's. About a microsecond later the engine sees its own word. Until then the plan's last
// launch is still under way here, and what tells the new one from one that overlaps is the client's word. It
// is the client's to write, so it decides nothing else: a launch ends by the completion word alone.
#include <algorithm>
#include <utility>

#include "engine/launch/launch_queue.h"
#include "ipc/channel_layout.h"

namespace tandem::engine {

bool LaunchQueue::SaysDone(const Launch& launch) {
  const Origin& origin = launch.origin;
  if (!launch.started || origin.kind == Origin::Kind::kDirect) return false;
  const ChannelConsumer& consumer = origin.channel->consumer;
  const bool captured = origin.kind == Origin::Kind::kCaptured;
  const Word* done = captured ? consumer.captured_done(origin.slot) : consumer.done();
  const uint64_t value = done->load(std::memory_order_acquire);
  // A channel that was released says nothing of its launches.
  return value >= (captured ? 1 : origin.id) && value < kOrdinaryLimit;
}

bool LaunchQueue::MustHold(const Plan& plan) const {
  if (plan.has_active && SaysDone(plan.active)) return true;
  // Launches of a plan are counted in the order in which they came.
  return std::any_of(held_arrivals_.begin(), held_arrivals_.end(),
                     [&](const HeldArrival& held) { return held.request.plan_id == plan.id; });
}

void LaunchQueue::Hold(const LaunchRequest& request) {
  HeldArrival& held = held_arrivals_.emplace_back();
  held.request = request;
  held.bindings.assign(request.bindings.begin(), request.bindings.end());
  held.request.bindings = held.bindings;
}

bool LaunchQueue::ArriveHeld() {
  const std::deque<HeldArrival> waiting = std::exchange(held_arrivals_, {});
  for (const HeldArrival& each : waiting) Arrive(each.request);
  return held_arrivals_.size() < waiting.size();
}

}  // namespace tandem::engine
