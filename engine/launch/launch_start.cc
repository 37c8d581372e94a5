// The launch queue: how a program gets onto the lanes, how launches end, and how groups break.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/launch/launch_outcome.h"
#include "engine/launch/launch_queue.h"
#include "engine/launch/profiler_range.h"
#include "program/packet_layout.h"

namespace tandem::engine {
namespace {

Failure NotEnqueued(const InstalledPlan& plan, const Status& status) {
  return MakeFailure("LAUNCH_FAILED",
                     status.WithContext("plan " + std::to_string(plan.id) + " could not be enqueued"),
                     plan.group->rank);
}

// The word by which lane 0 ends a launch for its client, and its value; null for a launch by message.
std::pair<Word*, uint64_t> DoneWordOf(const Origin& origin) {
  switch (origin.kind) {
    case Origin::Kind::kChannel: return {origin.channel->consumer.done(), origin.id};
    case Origin::Kind::kCaptured: return {origin.channel->consumer.captured_done(origin.slot), 1};
    case Origin::Kind::kDirect: break;
  }
  return {nullptr, 0};
}

}  // namespace

void LaunchQueue::Start(InstalledPlan* plan) {
  RemoveFromUndecided(plan);
  Launch& launch = plan->active;
  // Such a program meets no peer: it may go onto the lanes at any time, and in any order.
  if (plan->takes_launch_number || plan->program->ChunkSignals(launch.slots).empty())
    return StartOnLanes(plan);
  launch.progress.Advance(LaunchEvent::kHold);
  launch.held_ns = launch.next_chunk_ns = NowNs();
  launch.chunk = 0;
  held_.push_back(plan);
}

void LaunchQueue::StartOnLanes(InstalledPlan* plan) {
  Launch& launch = plan->active;
  EngineGroup& group = *plan->group;
  launch.progress.Advance(LaunchEvent::kStart);
  if (plan->takes_launch_number) {
    launch.launch_number = ++group.launch_number;
    if (plan->uses_bulk) group.last_bulk_launch = launch.launch_number;
  }
  const bool uses_lanes = plan->program->step_count() > 0;
  // First of all: the kernel that is there already can begin meanwhile. It ends no launch; the words that do
  // are enqueued behind it.
  if (uses_lanes) {
    Status cancelled;
    launch.speculative = speculation_.Use(plan, !in_flight_.empty(), &cancelled);
    NoteFatal(std::move(cancelled));
  }
  launch.start_ns = NowNs();
  PublishOutcome(launch.origin, group.generation, {});
  if (options_.speculates && launch.origin.channel) started_ = launch.origin;
  if (!uses_lanes) {
    const Origin origin = launch.origin;
    End(plan, LaunchEvent::kComplete, {}, launch.start_ns);
    CompleteByCpu(origin, {}, listener_);
    return;
  }
  launch.ticket = lanes_.TakeTicket();
  launch.alone = in_flight_.empty();
  in_flight_.push_back(plan);
  ++group.in_flight;
  const Status enqueued = EnqueueOnLanes(plan);
  // The peers' programs may wait for this one.
  if (!enqueued.ok()) LoseGroup(plan, NotEnqueued(*plan, enqueued));
}

Status LaunchQueue::EnqueueOnLanes(InstalledPlan* plan) {
  Launch& launch = plan->active;
  ProfilerRange range("start", plan->id, launch.count);
  Lane& lane = lanes_.lane0();
  Status status;
  // The events of a first kernel that is on its way already are there since it was enqueued, or not at all.
  const bool timed = LaunchTiming::IsTimed(launch.count) && !launch.speculative;
  launch.step_events.clear();
  if (timed) {
    Result<TimingEvents> events = timing_.TakeEvents();
    status = events.status();
    if (status.ok()) launch.events = *std::move(events);
    timing_.PrepareSteps(plan);
  }
  runtime::LaunchContext context = ContextOf(*plan, launch.launch_number, launch.slots);
  context.first_kernel_enqueued = launch.speculative;
  context.step_events = launch.step_events;
  context.lanes_idle = launch.alone;
  if (status.ok() && timed) status = lane.Record(launch.events.start.get());
  if (status.ok()) status = lanes_.executor().Enqueue(*plan->program, context);
  // Before the words below: a client that sees done must not find the OK of the start.
  if (!status.ok()) MarkFailed(plan, NotEnqueued(*plan, status));
  // Before the words, which take a microsecond or two that are not the program's.
  if (launch.events) {
    if (const Status recorded = lane.Record(launch.events.end.get()); status.ok()) status = recorded;
  }
  // Also after an error: the launch keeps its place on the lanes and its done value.
  const auto [done, value] = DoneWordOf(launch.origin);
  if (const Status ended = lanes_.EnqueueEnd(launch.ticket, done, value); status.ok()) status = ended;
  if (launch.origin.channel && launch.origin.channel->ended) KeepReleased(launch.origin.channel);
  return status;
}

void LaunchQueue::MarkFailed(InstalledPlan* plan, Failure failure) {
  Launch& launch = plan->active;
  failure.status = failure.status.WithStarted(true);
  if (launch.Is(LaunchState::kStarted)) {
    launch.progress.Advance(LaunchEvent::kFail);
    PublishOutcome(launch.origin, plan->group->generation, failure);
  }
  launch.failure = std::move(failure);
}

void LaunchQueue::End(InstalledPlan* plan, LaunchEvent event, const Failure& failure, uint64_t end_ns,
                      const LaunchObserved* observed) {
  Launch& launch = plan->active;
  EngineGroup& group = *plan->group;
  timing_.End(plan, failure.status.code(), end_ns, observed);
  if (launch.start_ns != 0 && end_ns > launch.start_ns) group.gpu_time_ns += end_ns - launch.start_ns;
  if (plan->uses_bulk && launch.launch_number != 0)
    group.arrivals.SetBulkEnded(group.rank, launch.launch_number);
  launch.pins.clear();
  launch.origin.channel.reset();
  launch.progress.Advance(event);
  --group.arrived;
}

bool LaunchQueue::Reap() {
  const uint64_t completed = lanes_.Completed();
  bool any = false;
  while (!in_flight_.empty() && in_flight_.front()->active.ticket <= completed) {
    InstalledPlan* plan = in_flight_.front();
    in_flight_.pop_front();
    any = true;
    Launch& launch = plan->active;
    --plan->group->in_flight;
    const LaunchObserved observed = timing_.Observe(launch);
    const LaunchTimes times = TimesOf(observed, &plan->lags);
    launch.start_ns = times.start_ns;
    const Origin origin = launch.origin;
    const Failure failure = std::exchange(launch.failure, {});
    End(plan, LaunchEvent::kComplete, failure, times.end_ns, &observed);
    front_since_ns_ = observed.seen_ns;
    if (lanes_.ChoosesStream() && origin.channel) {
      origin.channel->ended_ns = observed.seen_ns;
      origin.channel->ended_plan = plan->id;
    }
    // The done word is the lane's to write; only a launch by message has none.
    if (origin.kind == Origin::Kind::kDirect) {
      CompleteByCpu(origin, failure, listener_);
    } else {
      FreeOrigin(origin);
    }
  }
  if (any) PublishProgress();
  return any;
}

void LaunchQueue::Break(EngineGroup* group, Failure failure) {
  const bool first = !group->Broken();
  group->breaking.failure = std::move(failure);
  if (!first) return;
  CancelSpeculation();
  const Failure& why = *group->breaking.failure;
  std::vector<InstalledPlan*> waiting;
  for (InstalledPlan* plan : undecided_) {
    if (plan->group == group) waiting.push_back(plan);
  }
  for (InstalledPlan* plan : std::vector<InstalledPlan*>(held_)) {
    if (plan->group != group) continue;
    listener_->OnLaunchFailed(*plan, plan->active.count, why.status);
    RefuseHeld(plan, why);
  }
  // The log first: a launch for which a rank is missing then cannot start on any rank any more. A peer may
  // have read the START of the others. Peers that get no command also read it: tandemd may be gone, or not
  // know yet.
  if ((group->in_flight > 0 || !waiting.empty()) && group->world_size > 1) breaker_.Announce(group);
  for (InstalledPlan* plan : waiting) {
    listener_->OnLaunchFailed(*plan, plan->active.count, why.status);
    Refuse(plan, why, MissingMask(*plan) != 0 ? std::optional(false) : std::nullopt);
  }
  // A program that has ended keeps its outcome: its client may have read that.
  Reap();
  for (InstalledPlan* plan : in_flight_) {
    if (plan->group != group) continue;
    MarkFailed(plan, why);
    listener_->OnLaunchFailed(*plan, plan->active.count, why.status);
  }
  const uint64_t now = NowNs();
  breaker_.Mark(group, now);
  NoteFatal(breaker_.Serve(group, now));
}

void LaunchQueue::LoseGroup(InstalledPlan* plan, Failure failure) {
  EngineGroup& group = *plan->group;
  // The log first: no engine starts another program of the group.
  breaker_.Announce(&group);
  listener_->OnGroupLost(*plan, plan->active.count, failure.status);
  Break(&group, std::move(failure));
}

bool LaunchQueue::ServeBroken(uint64_t now) {
  bool any = false;
  for (auto& [id, group] : groups_) {
    if (group->breaking.state == BreakState::kWhole) continue;
    if (now == 0) now = NowNs();
    if (GroupBreaker::GraceIsOver(*group, now)) {
      Break(group.get(),
            MakeFailure("GROUP_BROKEN", Unavailable("a rank or an engine of the group has failed"), -1));
      any = true;
      now = NowNs();  // the marks are later
    } else if (group->Broken()) {
      NoteFatal(breaker_.Serve(group.get(), now));
    }
  }
  return any;
}

std::string LaunchQueue::AwaitedText(const InstalledPlan& plan, int* who_rank) const {
  const EngineGroup& group = *plan.group;
  const Word* words = group.signals[static_cast<size_t>(group.rank)];
  const uint64_t launch_number = plan.active.launch_number;
  bool all_seen = true;
  const auto value_of = [&](const Word* word) {
    Result<uint64_t> value = backend_->LoadWord(word);
    all_seen &= value.ok();
    return value.ok() ? *value : 0;
  };
  uint8_t awaited =
      plan.program->AwaitedRanks([&](uint32_t word) { return value_of(words + word) >= launch_number; });
  const char* what = "signals";
  if (awaited == 0 && plan.program->AwaitsPackets()) {
    const std::byte* half = reinterpret_cast<const std::byte*>(words) + plan::kSignalWordBytes +
                            (launch_number & 1) * plan::kPacketHalfBytes;
    awaited = plan.program->AwaitedPackets([&](uint64_t packet) {
      const std::byte* at = half + packet * PacketLayout::kPacketBytes + PacketLayout::kDataBytes;
      return value_of(reinterpret_cast<const Word*>(at)) == launch_number;
    });
    what = "packets";
    if (awaited == 0) return "all packets of its peers have come, and its kernel does not end";
  }
  if (awaited == 0) return "its lanes wait for no peer's signal: a kernel, a copy or NCCL does not end";
  if (std::has_single_bit(awaited)) *who_rank = std::countr_zero(awaited);
  std::string ranks;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if ((awaited & (1u << rank)) != 0) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return std::string(all_seen ? "its lanes wait" : "its program waits") + " for " + what + " of rank " +
         ranks;
}

bool LaunchQueue::EndOverdue() {
  if (in_flight_.empty()) return false;
  InstalledPlan* plan = in_flight_.front();
  const Launch& launch = plan->active;
  if (plan->group->Broken()) return false;  // its lanes are being released
  const uint64_t now = NowNs(), since = std::max(launch.start_ns, front_since_ns_);
  if (now < since || now - since < launch.run_limit_ns) return false;
  int who_rank = -1;
  const std::string awaited = AwaitedText(*plan, &who_rank);
  const std::string text = LaunchName(*plan, launch.count) + " has run on rank " +
                           std::to_string(plan->group->rank) + " for " +
                           std::to_string((now - since) / 1'000'000) + " ms, beyond its deadline; " + awaited;
  LoseGroup(plan, MakeFailure("LAUNCH_OVERDUE", DeadlineExceeded(text), who_rank));
  return true;
}

}  // namespace tandem::engine
