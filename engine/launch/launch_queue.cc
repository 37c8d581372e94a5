#include "engine/launch/launch_queue.h"

#include <time.h>

#include <algorithm>
#include <limits>

namespace tandem::engine {
namespace {

// A rank may not be further ahead of the slowest one than this: the log names launches by 16 bits.
constexpr uint64_t kMaxLead = 16384;
constexpr uint64_t kLateAfterNs = 1'000'000'000;
constexpr size_t kMaxTombstones = 8192;

uint64_t Saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

std::string LaunchName(const Plan& plan, uint64_t count) {
  return "launch " + std::to_string(count) + " of plan " + std::to_string(plan.id);
}

}  // namespace

uint64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

LaunchQueue::LaunchQueue(const LaunchQueueOptions& options, Backend* backend, MemoryTable* memory,
                         OrderLog log, StatsArea stats, WordPage words,
                         std::vector<std::unique_ptr<Lane>> lanes, LaunchListener* listener)
    : options_(options),
      backend_(backend),
      memory_(memory),
      log_(std::move(log)),
      stats_(std::move(stats)),
      lanes_(std::move(lanes)),
      listener_(listener),
      read_position_(log_.Head()),
      words_(std::move(words)),
      completion_(&words_[0]) {
  std::vector<Lane*> lane_pointers;
  for (const auto& lane : lanes_) {
    lane->HoldWords();
    lane_pointers.push_back(lane.get());
  }
  if (!lanes_.empty() && lanes_[0]->stream_count() > 1) stream_choice_.emplace(options.turn_limits);
  executor_ = std::make_unique<Executor>(backend_, std::move(lane_pointers));
  PublishProgress();
}

LaunchQueue::~LaunchQueue() = default;

Status LaunchQueue::AddGroup(std::unique_ptr<Group> group) {
  for (const auto& [id, other] : groups_) {
    if (((id ^ group->id) & kLogIdMask) == 0)
      return AlreadyExists("group " + std::to_string(id) + " exists already");
  }
  RevokeOffers();
  groups_.emplace(group->id, std::move(group));
  return Status::Ok();
}

Group* LaunchQueue::FindGroup(uint64_t id) {
  auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

void LaunchQueue::RemoveGroup(uint64_t id) {
  std::vector<uint64_t> plans;
  for (const auto& [key, plan] : plans_) {
    if (plan->group->id == id) plans.push_back(plan->id);
  }
  for (uint64_t plan : plans) RemovePlan(plan);
  groups_.erase(id);
}

Status LaunchQueue::AddPlan(std::unique_ptr<Plan> plan) {
  uint32_t key = static_cast<uint32_t>(plan->id) & kLogIdMask;
  if (plan->id == 0 || plans_.contains(key)) {
    return AlreadyExists("plan " + std::to_string(plan->id) + " exists already");
  }
  plan->stats_row = stats_.ClaimRow(plan->id, plan->group->id);
  // A tombstone of its stays: should this generation be taken back because another engine has ended, launches
  // still hear why.
  plans_.emplace(key, std::move(plan));
  return Status::Ok();
}

Plan* LaunchQueue::FindPlan(uint64_t id) {
  auto found = plans_.find(static_cast<uint32_t>(id) & kLogIdMask);
  return found == plans_.end() || found->second->id != id ? nullptr : found->second.get();
}

bool LaunchQueue::RemovePlan(uint64_t id) {
  Plan* plan = FindPlan(id);
  if (plan == nullptr) return true;
  if (prelaunched_ && prelaunched_->plan == plan) CallOff();
  const auto own = static_cast<uint8_t>(1u << plan->group->rank);
  if (plan->has_active && plan->active.parked.Waits() && !plan->group->broken) {
    TakeBack(plan, LogKind::kFailRefused, own);
  }
  if (plan->has_active && !plan->active.started) {
    uint64_t count = plan->active.count;
    AppendFailure(plan, count, LogKind::kFailRefused, own);
    // The log may have said START or PARK first: then it runs.
    if (plan->has_active && !plan->active.started && !plan->active.arrived) {
      WithdrawOffer(plan);
    } else if (plan->has_active && !plan->active.started) {
      FailUndecided(
          plan, MakeFailure("RELEASED", Aborted(LaunchName(*plan, count) + " ended: the plan was released"),
                            plan->group->rank));
    }
  }
  if (plan->has_active) return false;
  ReadAllEvents(*plan);
  if (plan->group->broken.has_value()) {
    tombstones_[id] = *plan->group->broken;
    tombstone_order_.push_back(id);
    if (tombstone_order_.size() > kMaxTombstones) {
      tombstones_.erase(tombstone_order_.front());
      tombstone_order_.pop_front();
    }
  }
  stats_.ReleaseRow(plan->stats_row);
  plans_.erase(static_cast<uint32_t>(id) & kLogIdMask);
  return true;
}

Failure LaunchQueue::UnknownPlan(const LaunchRequest& request, bool foreign) const {
  const auto tombstone = tombstones_.find(request.plan_id);
  if (tombstone != tombstones_.end()) return tombstone->second;
  const std::string plan = "plan " + std::to_string(request.plan_id);
  // A client may be faster than the restoration of its group. To it this is what every launch of the
  // generation before is.
  if (options_.replaces && !foreign) {
    return MakeFailure("ENGINE_RESTARTED",
                       Aborted("an engine was restarted: it has not been told of " + plan +
                               " yet, this launch was not made"),
                       -1);
  }
  return {NotFound("no " + plan + " on this engine"), -1};
}

Failure LaunchQueue::WhyNotCounted(const Plan& plan) const {
  const Group& group = *plan.group;
  uint64_t slowest = plan.arrivals;
  int slowest_rank = group.rank;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if (rank == group.rank) continue;
    // Ranks that have not launched since this engine learnt of the plan stand where it began.
    if (uint64_t count = std::max(group.arrivals.Count(plan.index, rank), plan.first_count);
        count < slowest) {
      slowest = count;
      slowest_rank = rank;
    }
  }
  if (plan.arrivals - slowest > kMaxLead) {
    return MakeFailure("TOO_FAR_AHEAD",
                       ResourceExhausted("rank " + std::to_string(slowest_rank) + " is " +
                                         std::to_string(kMaxLead) + " launches of plan " +
                                         std::to_string(plan.id) + " behind; this launch does not count"),
                       slowest_rank);
  }
  // Nor further ahead of its own launch that is under way, with one rank above all: the log decides that one
  // by 16 bits too.
  if (plan.has_active && plan.arrivals - plan.active.count >= kMaxLead) {
    return MakeFailure("TOO_FAR_AHEAD",
                       ResourceExhausted(LaunchName(plan, plan.active.count) + " is under way since " +
                                         std::to_string(kMaxLead) + " launches; this launch does not count"),
                       group.rank);
  }
  if ((group.left_mask & (1u << group.rank)) == 0) return {};
  // The peers end theirs without it: none must find all ranks there once some have. What the log has ended
  // already keeps its number.
  if (std::any_of(plan.early.begin(), plan.early.end(),
                  [&](auto& e) { return e.first == plan.arrivals + 1; }))
    return {};
  return MakeFailure(
      "RANK_LEFT",
      Unavailable("rank " + std::to_string(group.rank) + " has left the group; this launch does not count"),
      group.rank);
}

void LaunchQueue::Arrive(const LaunchRequest& request) {
  Plan* plan = FindPlan(request.plan_id);
  bool foreign = plan != nullptr && plan->group->session_id != 0 && request.origin.session_id != 0 &&
                 plan->group->session_id != request.origin.session_id;
  if (plan == nullptr || foreign) {
    RejectArrival(request, request.group_generation, UnknownPlan(request, foreign));
    return;
  }
  Group& group = *plan->group;
  if (request.group_generation < group.generation) {
    // Not counted: it belongs to launches that ended with the old generation.
    RejectArrival(
        request, group.generation,
        MakeFailure("ENGINE_RESTARTED",
                    Aborted("the launch belongs to generation " + std::to_string(request.group_generation) +
                            " of its group; an engine was restarted, the group is at generation " +
                            std::to_string(group.generation)),
                    -1));
    return;
  }
  if (request.origin.kind == Origin::Kind::kDirect && !group.direct) {
    group.direct = true;
    RevokeOffers();
  }
  if (group.broken.has_value()) {
    RejectArrival(request, group.generation, *group.broken);
    return;
  }
  if (plan->has_active && !plan->active.arrived && !plan->active.started &&
      request.origin.channel == plan->active.origin.channel && request.origin.id == plan->active.origin.id) {
    ArriveOffered(plan);
    return;
  }
  if (plan->has_active) Reap();
  if (MustHold(*plan)) {
    Hold(request);
    return;
  }
  if (Failure failure = WhyNotCounted(*plan); !failure.status.ok()) {
    RejectArrival(request, group.generation, std::move(failure));
    return;
  }
  const uint64_t count = ++plan->arrivals;
  if (plan->has_active) {
    // Its row still speaks for the launch that is under way, so this one is told by the log alone.
    AppendFailure(plan, count, LogKind::kFailOverlap, static_cast<uint8_t>(1u << group.rank));
    Failure failure =
        MakeFailure("LAUNCH_OVERLAP",
                    FailedPrecondition(LaunchName(*plan, count) + " arrived before launch " +
                                       std::to_string(plan->active.count) +
                                       " was done; work that may overlap needs plans of its own"),
                    group.rank);
    listener_->OnLaunchFailed(*plan, count, failure.status);
    RejectArrival(request, group.generation, std::move(failure));
    return;
  }
  auto early =
      std::find_if(plan->early.begin(), plan->early.end(), [&](auto& e) { return e.first == count; });
  if (early != plan->early.end()) {
    Failure failure = FailureOf(*plan, count, early->second);
    plan->early.erase(early);
    group.arrivals.Arrive(plan->index, group.rank, 0, count);
    listener_->OnLaunchFailed(*plan, count, failure.status);
    RejectArrival(request, group.generation, std::move(failure));
    return;
  }
  Launch& launch = plan->active;
  Status resolved = ResolveBindings(plan, request);
  if (!resolved.ok()) {
    AppendFailure(plan, count, LogKind::kFailRefused, static_cast<uint8_t>(1u << group.rank));
    group.arrivals.Arrive(plan->index, group.rank, 0, count);
    Failure failure =
        MakeFailure("LAUNCH_REFUSED", resolved.WithContext(LaunchName(*plan, count)), group.rank);
    listener_->OnLaunchFailed(*plan, count, failure.status);
    RejectArrival(request, group.generation, std::move(failure));
    return;
  }
  Activate(plan, request, count);
  const uint64_t now = NowNs();
  SetArrived(plan, now);
  NoteTurn(request.origin, now);
  group.arrivals.Arrive(plan->index, group.rank, launch.digest, count);
}

void LaunchQueue::Activate(Plan* plan, const LaunchRequest& request, uint64_t count) {
  Launch& launch = plan->active;
  launch.origin = request.origin;
  launch.count = count;
  launch.asked_deadline_ns = request.deadline_ns;
  launch.run_limit_ns = RunLimitNs(request.deadline_ns, plan->group->deadline_ns);
  launch.arrive_ns = 0;
  launch.start_ns = 0;
  launch.started = false;
  launch.arrived = false;
  launch.parked = {};
  launch.failure = {};
  launch.epoch = 0;
  launch.prelaunched = false;
  plan->has_active = true;
  ++plan->group->arrived;
  undecided_.push_back(plan);
}

void LaunchQueue::SetArrived(Plan* plan, uint64_t now) {
  Launch& launch = plan->active;
  launch.arrived = true;
  launch.arrive_ns = now;
  launch.deadline_ns =
      Saturating(now, launch.asked_deadline_ns != 0 ? launch.asked_deadline_ns : plan->group->deadline_ns);
  launch.next_late_ns = now + kLateAfterNs;
}

Status LaunchQueue::ResolveBindings(const Plan& plan, const LaunchRequest& request,
                                    std::vector<SlotAddress>* slots,
                                    std::vector<std::shared_ptr<Registration>>* pins,
                                    uint64_t* digest) const {
  const Group& group = *plan.group;
  *digest = FoldDigest(kDigestSeed, request.tag_digest);
  BindingScope scope{.session_id = request.origin.session_id,
                     .group_id = group.id,
                     .rank = group.rank,
                     .world_size = group.world_size};
  Status resolved = memory_->Resolve(request.bindings, plan.slots, scope, slots, pins, digest);
  if (!resolved.ok()) pins->clear();
  return resolved;
}

void LaunchQueue::RejectArrival(const LaunchRequest& request, uint64_t generation, Failure failure) {
  failure.status = failure.status.WithStarted(false);
  PublishOutcome(request.origin, generation, failure);
  CompleteByCpu(request.origin, failure);
}

bool LaunchQueue::LogHasNews() const {
  LogEntry entry;
  return log_.Read(read_position_, &entry) != LogRead::kEmpty;
}

bool LaunchQueue::DrainLog() {
  bool any = false;
  for (LogEntry entry;;) {
    switch (log_.Read(read_position_, &entry)) {
      case LogRead::kEmpty: return any;
      case LogRead::kLapped:
        fatal_ = Status(Code::kDataLoss,
                        "the order log has lapped this engine at position " + std::to_string(read_position_));
        return any;
      case LogRead::kEntry:
        any = true;
        ++read_position_;
        Apply(entry, read_position_ - 1);
        break;
    }
  }
}

uint64_t LaunchQueue::FullCount(const Plan& plan, uint16_t low) const {
  uint64_t near = plan.arrivals + 1;
  return near +
         static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(low - static_cast<uint16_t>(near))));
}

void LaunchQueue::Apply(const LogEntry& entry, uint64_t position) {
  if (entry.kind == LogKind::kBreak) {
    for (auto& [id, group] : groups_) {
      if (((id ^ entry.plan) & kLogIdMask) != 0 || static_cast<uint16_t>(group->generation) != entry.count)
        continue;
      if (group->log_break_ns == 0) group->log_break_ns = NowNs();
    }
    return;
  }
  const bool starts = entry.kind == LogKind::kStart || entry.kind == LogKind::kPark;
  if (starts) {
    recent_starts_.push_back({position, entry.mask});
    if (recent_starts_.size() > 64) recent_starts_.pop_front();
  }
  auto found = plans_.find(entry.plan);
  if (found == plans_.end()) return;
  Plan* plan = found->second.get();
  uint64_t count = FullCount(*plan, entry.count);
  if (entry.kind == LogKind::kRevoke) {
    plan->revoked = std::max(plan->revoked, count);
    return;
  }
  if (plan->has_active && plan->active.count == count && (plan->active.started || !plan->active.arrived) &&
      !starts) {
    // Parked: it is to be taken back. Offered: it fails when it arrives.
    Parked& parked = plan->active.parked;
    if (!parked.taken_back.has_value() && (parked.on_lanes || !plan->active.started)) {
      parked.taken_back = entry;
      parked.taken_back_ns = NowNs();
    }
    return;
  }
  if (plan->has_active && !plan->active.started && plan->active.count == count) {
    if (!starts) {
      Failure failure = FailureOf(*plan, count, entry);
      listener_->OnLaunchFailed(*plan, count, failure.status);
      FailUndecided(plan, std::move(failure));
    } else if (!plan->group->broken.has_value() && plan->group->log_break_ns == 0) {
      Start(plan, entry.kind == LogKind::kPark);
    }
    return;
  }
  if (starts || count <= plan->arrivals) return;
  for (const auto& known : plan->early) {
    if (known.first == count) return;  // the first entry for a launch decides
  }
  plan->early.emplace_back(count, entry);
}

void LaunchQueue::AppendFailure(Plan* plan, uint64_t count, LogKind kind, uint8_t ranks) {
  LogEntry entry{.kind = kind,
                 .mask = ranks,
                 .plan = static_cast<uint32_t>(plan->id) & kLogIdMask,
                 .count = static_cast<uint16_t>(count)};
  bool for_active = plan->has_active && plan->active.count == count;
  while (fatal_.ok()) {
    DrainLog();
    // What we were about to decide has been decided: by START, or by a failure that ended it.
    if (for_active && (!plan->has_active || plan->active.count != count || plan->active.started)) return;
    if (log_.TryAppend(read_position_, entry)) break;
  }
  DrainLog();
}

void LaunchQueue::FailUndecided(Plan* plan, Failure failure, std::optional<bool> started) {
  failure.status = failure.status.WithStarted(started);
  RemoveFromUndecided(plan);
  PublishOutcome(plan->active.origin, plan->group->generation, failure);
  Origin origin = plan->active.origin;
  End(plan, failure, NowNs());
  CompleteByCpu(origin, failure);
}

void LaunchQueue::RemoveFromUndecided(Plan* plan) {
  auto found = std::find(undecided_.begin(), undecided_.end(), plan);
  if (found != undecided_.end()) {
    *found = undecided_.back();
    undecided_.pop_back();
  }
}

void LaunchQueue::ForEachActive(const std::function<void(const Plan&)>& visit) const {
  for (const Plan* plan : undecided_) {
    if (plan->active.arrived) visit(*plan);
  }
  for (const Plan* plan : in_flight_) visit(*plan);
}

bool LaunchQueue::HoldsParked() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [](const Plan* plan) { return plan->active.parked.Waits(); });
}

std::vector<uint64_t> LaunchQueue::GroupIds() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  return ids;
}

}  // namespace tandem::engine
