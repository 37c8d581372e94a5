// How launches end: failures by what the log says, status records, done values, statistics.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

std::string RankList(uint8_t mask) {
  std::string text = std::has_single_bit(mask) ? "rank " : "ranks ";
  bool first = true;
  for (int rank = 0; rank < 8; ++rank) {
    if ((mask & (1u << rank)) == 0) continue;
    text += (first ? "" : ", ") + std::to_string(rank);
    first = false;
  }
  return text;
}

// A released channel stays so when a launch of its ends, whose done value has come over the release: its
// stream waits for later ones.
void ReleaseAgain(const Origin& origin) {
  if (origin.channel == nullptr || !origin.channel->ended) return;
  ChannelWords& words = origin.channel->consumer.words();
  if (words.Released()) words.Release(Aborted("the channel has ended"));  // the first reason stays
}

}  // namespace

Failure MakeFailure(std::string reason, Status status, int who_rank) {
  StatusDetail detail = status.detail();
  detail.reason = std::move(reason);
  if (who_rank >= 0) {
    detail.who = "rank " + std::to_string(who_rank);
    detail.ranks = {static_cast<uint32_t>(who_rank)};
  }
  return {status.WithDetail(std::move(detail)), who_rank};
}

Failure LaunchQueue::FailureOf(const Plan& plan, uint64_t count, const LogEntry& entry) const {
  std::string name = "launch " + std::to_string(count) + " of plan " + std::to_string(plan.id);
  const int who = entry.mask == 0 ? -1 : std::countr_zero(entry.mask);
  const std::string ranks = RankList(entry.mask);
  switch (entry.kind) {
    case LogKind::kFailDeadline:
      return MakeFailure(
          "RANK_LATE", DeadlineExceeded(name + " ended by its deadline: " + ranks + " had not arrived"), who);
    case LogKind::kFailMismatch:
      return MakeFailure("LAUNCH_MISMATCH",
                         InvalidArgument(name + ": tag or offsets of symmetric operands on " + ranks +
                                         " differ from those on rank 0"),
                         who);
    case LogKind::kFailRefused:
      return MakeFailure("LAUNCH_REFUSED", FailedPrecondition(name + " was refused on " + ranks), who);
    case LogKind::kFailOverlap:
      return MakeFailure(
          "LAUNCH_OVERLAP",
          FailedPrecondition(name + ": " + ranks + " launched it before the plan's previous launch was done"),
          who);
    case LogKind::kFailLeft: return MakeFailure("RANK_LEFT", Unavailable(ranks + " has left the group"), who);
    case LogKind::kStart:
    case LogKind::kPark:
    case LogKind::kRevoke:
    case LogKind::kBreak: break;
  }
  return {Internal(name + ": unknown entry in the order log"), -1};
}

void LaunchQueue::PublishOutcome(const Origin& origin, uint64_t generation, const Failure& failure) {
  switch (origin.kind) {
    case Origin::Kind::kChannel:
      if (failure.status.ok()) {
        origin.channel->consumer.PublishOk(origin.id, generation);
      } else {
        origin.channel->consumer.PublishStatus(origin.id, failure.status, generation, failure.who_rank);
      }
      break;
    case Origin::Kind::kCaptured:
      origin.channel->consumer.PublishCaptured(origin.slot, origin.id, failure.status, generation,
                                               failure.who_rank);
      break;
    case Origin::Kind::kDirect: break;  // told once, by CompleteByCpu
  }
}

void LaunchQueue::CompleteByCpu(const Origin& origin, const Failure& failure) {
  switch (origin.kind) {
    case Origin::Kind::kChannel:
      --origin.channel->under_way;
      origin.channel->consumer.Complete(origin.id);
      break;
    case Origin::Kind::kCaptured:
      if (origin.channel->captured[origin.slot]) origin.channel->captured[origin.slot]->busy = false;
      origin.channel->consumer.CompleteCaptured(origin.slot);
      break;
    case Origin::Kind::kDirect: listener_->OnLaunchDone(origin.id, failure.status); break;
  }
  ReleaseAgain(origin);
}

void LaunchQueue::End(Plan* plan, const Failure& failure, uint64_t end_ns, const LaunchObserved* observed) {
  Launch& launch = plan->active;
  Group& group = *plan->group;
  TraceRecord record{.plan_id = plan->id,
                     .group_id = group.id,
                     .launch = launch.count,
                     .arrive_ns = launch.arrive_ns,
                     .start_ns = launch.start_ns,
                     .end_ns = end_ns,
                     .code = static_cast<int32_t>(failure.status.code())};
  stats_.Count(plan->stats_row, !failure.status.ok(), plan->bytes_moved);
  if (observed != nullptr && launch.events) {
    untimed_.push_back({.plan = plan,
                        .record = record,
                        .observed = *observed,
                        .events = std::exchange(launch.events, {}),
                        .steps = std::exchange(launch.step_events, {})});
  } else {
    stats_.Time(plan->stats_row, record);
  }
  if (launch.start_ns != 0 && end_ns > launch.start_ns) {
    group.gpu_time_ns += end_ns - launch.start_ns;
    uint64_t from = std::max(launch.start_ns, busy_until_ns_);
    if (end_ns > from) {
      busy_ns_ += end_ns - from;
      busy_until_ns_ = end_ns;
      stats_.SetGpuTime(busy_ns_);
    }
  }
  if (plan->uses_bulk && launch.epoch != 0) group.arrivals.SetBulkEnded(group.rank, launch.epoch);
  GiveBack(std::exchange(launch.events, {}));
  launch.pins.clear();
  launch.origin.channel.reset();
  plan->has_active = false;
  --group.arrived;
}

bool LaunchQueue::Reap() {
  uint64_t completed = completion_->load(std::memory_order_acquire);
  bool any = false;
  while (!in_flight_.empty() && in_flight_.front()->active.ticket <= completed) {
    Plan* plan = in_flight_.front();
    in_flight_.pop_front();
    any = true;
    Launch& launch = plan->active;
    --plan->group->in_flight;
    if (launch.parked.on_lanes) LeaveParking(plan);
    const LaunchObserved observed = Observe(launch);
    const LaunchTimes times = TimesOf(observed, &plan->lags);
    launch.start_ns = times.start_ns;
    Origin origin = launch.origin;
    Failure failure = launch.failure;
    End(plan, failure, times.end_ns, &observed);
    front_since_ns_ = observed.seen_ns;
    if (stream_choice_ && origin.channel) {
      origin.channel->ended_ns = observed.seen_ns;
      origin.channel->ended_plan = plan->id;
    }
    // The done word is the lane's to write; only a direct launch has none.
    if (origin.kind == Origin::Kind::kDirect) CompleteByCpu(origin, failure);
    if (origin.kind == Origin::Kind::kChannel) --origin.channel->under_way;
    if (origin.kind == Origin::Kind::kCaptured && origin.channel->captured[origin.slot]) {
      origin.channel->captured[origin.slot]->busy = false;
    }
    ReleaseAgain(origin);
  }
  if (any) PublishProgress();
  return any;
}

void LaunchQueue::PublishProgress() {
  uint64_t progress = read_position_ << 8 | static_cast<uint8_t>(in_flight_.size());
  if (progress == published_progress_) return;
  published_progress_ = progress;
  log_.PublishProgress(options_.gpu, read_position_, static_cast<int>(in_flight_.size()));
}

}  // namespace tandem::engine
