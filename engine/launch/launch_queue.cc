#include "engine/launch/launch_queue.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/digest.h"
#include "engine/launch/launch_outcome.h"

namespace tandem::engine {
namespace {

// A rank may not be further ahead of the slowest one than this: the log names launches by 16 bits.
constexpr uint64_t kMaxLead = 16384;
constexpr size_t kMaxTombstones = 8192;

uint64_t Saturating(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<uint64_t>::max() : sum;
}

uint8_t MaskOf(int rank) { return static_cast<uint8_t>(1u << rank); }

}  // namespace

LaunchQueue::LaunchQueue(const LaunchQueueOptions& options, Backend* backend, MemoryTable* memory,
                         OrderLog log, StatsArea stats, WordPage words,
                         std::vector<std::unique_ptr<Lane>> lanes, LaunchListener* listener)
    : options_(options),
      backend_(backend),
      memory_(memory),
      log_(std::move(log)),
      stats_(std::move(stats)),
      listener_(listener),
      lanes_(backend, std::move(words), std::move(lanes), options.turn_limits),
      timing_(backend, &stats_),
      speculation_(backend, &lanes_, &timing_, &stats_),
      breaker_(backend, &log_, listener),
      read_position_(log_.Head()) {
  PublishProgress();
}

LaunchQueue::~LaunchQueue() = default;

Status LaunchQueue::AddGroup(std::unique_ptr<EngineGroup> group) {
  for (const auto& [id, other] : groups_) {
    if (((id ^ group->id) & kLogIdMask) == 0)
      return AlreadyExists("group " + std::to_string(id) + " exists already");
  }
  groups_.emplace(group->id, std::move(group));
  return Status::Ok();
}

EngineGroup* LaunchQueue::FindGroup(uint64_t id) {
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

Status LaunchQueue::AddPlan(std::unique_ptr<InstalledPlan> plan) {
  uint32_t key = static_cast<uint32_t>(plan->id) & kLogIdMask;
  if (plan->id == 0 || plans_.contains(key)) {
    return AlreadyExists("plan " + std::to_string(plan->id) + " exists already");
  }
  plan->stats_row = stats_.ClaimRow(plan->id, plan->group->id, plan->op, plan->algorithm);
  // The plan's tombstone stays: if this generation is taken back because another engine has ended, launches
  // still get the reason.
  PublishLaunched(*plan);
  plans_.emplace(key, std::move(plan));
  return Status::Ok();
}

InstalledPlan* LaunchQueue::FindPlan(uint64_t id) {
  auto found = plans_.find(static_cast<uint32_t>(id) & kLogIdMask);
  return found == plans_.end() || found->second->id != id ? nullptr : found->second.get();
}

bool LaunchQueue::RemovePlan(uint64_t id) {
  InstalledPlan* plan = FindPlan(id);
  if (plan == nullptr) return true;
  NoteFatal(speculation_.CancelIfOf(*plan));
  if (plan->active.Is(LaunchState::kArrived)) {
    const uint64_t count = plan->active.count;
    AppendFailure(plan, count, LogKind::kFailRefused, MaskOf(plan->group->rank));
    // The log may have said START first: then it runs.
    if (plan->active.Is(LaunchState::kArrived)) {
      Refuse(plan,
             MakeFailure("RELEASED", Aborted(LaunchName(*plan, count) + " ended: the plan was released"),
                         plan->group->rank));
    }
  }
  if (plan->active.Is(LaunchState::kHeld)) {
    RefuseHeld(plan, MakeFailure("RELEASED",
                                 Aborted(LaunchName(*plan, plan->active.count) +
                                         " ended: the plan was released before its input had come"),
                                 plan->group->rank));
  }
  if (!plan->active.Is(LaunchState::kNone)) return false;
  timing_.ReadAll(*plan);
  if (plan->group->Broken()) {
    tombstones_[id] = *plan->group->breaking.failure;
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
  // A client may be faster than the restoration of the group. It gets the status of every launch of the
  // generation before.
  if (options_.replaces && !foreign) {
    return MakeFailure(
        "ENGINE_RESTARTED",
        Aborted("an engine was restarted and does not have " + plan + " yet: this launch was not made"), -1);
  }
  return {NotFound("no " + plan + " on this engine"), -1};
}

Failure LaunchQueue::WhyNotCounted(const InstalledPlan& plan) const {
  const EngineGroup& group = *plan.group;
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
  // Nor further ahead of the rank's own launch that is under way: the log names that launch by 16 bits too.
  if (!plan.active.Is(LaunchState::kNone) && plan.arrivals - plan.active.count >= kMaxLead) {
    return MakeFailure("TOO_FAR_AHEAD",
                       ResourceExhausted(LaunchName(plan, plan.active.count) + " is under way since " +
                                         std::to_string(kMaxLead) + " launches; this launch does not count"),
                       group.rank);
  }
  if ((group.left_mask & (1u << group.rank)) == 0) return {};
  // The peers end their launches without it: none must find all ranks there once some have. A launch that the
  // log has ended already keeps its number.
  if (std::any_of(plan.early.begin(), plan.early.end(),
                  [&](auto& e) { return e.first == plan.arrivals + 1; }))
    return {};
  return MakeFailure(
      "RANK_LEFT",
      Unavailable("rank " + std::to_string(group.rank) + " has left the group; this launch does not count"),
      group.rank);
}

void LaunchQueue::Arrive(const LaunchRequest& request) {
  InstalledPlan* plan = FindPlan(request.plan_id);
  bool foreign = plan != nullptr && plan->group->session_id != 0 && request.origin.session_id != 0 &&
                 plan->group->session_id != request.origin.session_id;
  if (plan == nullptr || foreign) {
    RejectArrival(request, request.group_generation, UnknownPlan(request, foreign));
    return;
  }
  const bool from_ring =
      request.origin.kind == Origin::Kind::kChannel && request.group_generation == plan->group->generation;
  if (plan->group->ordered && from_ring && plan->queued > 0) --plan->queued;
  ArriveAt(plan, request);
  PublishLaunched(*plan);
}

void LaunchQueue::ArriveAt(InstalledPlan* plan, const LaunchRequest& request) {
  EngineGroup& group = *plan->group;
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
  if (group.Broken()) {
    RejectArrival(request, group.generation, *group.breaking.failure);
    return;
  }
  if (group.stalled) {
    Failure stalled = *group.stalled;
    stalled.status =
        Status(stalled.status.code(), stalled.status.message() + "; the group is stalled until it is renewed",
               stalled.status.detail());
    RejectArrival(request, group.generation, std::move(stalled));
    return;
  }
  Launch& launch = plan->active;
  if (!launch.Is(LaunchState::kNone)) Reap();
  if (const Failure failure = WhyNotCounted(*plan); !failure.status.ok()) {
    RejectArrival(request, group.generation, failure);
    return;
  }
  const uint64_t count = ++plan->arrivals;
  if (!launch.Is(LaunchState::kNone)) {
    // Its row still speaks for the launch that is under way, so only the log shows this one to the peers.
    AppendFailure(plan, count, LogKind::kFailOverlap, MaskOf(group.rank));
    RejectCounted(request, *plan, count,
                  MakeFailure("LAUNCH_OVERLAP",
                              FailedPrecondition(LaunchName(*plan, count) + " arrived before launch " +
                                                 std::to_string(launch.count) +
                                                 " was done; work that may overlap needs plans of its own"),
                              group.rank));
    return;
  }
  auto early =
      std::find_if(plan->early.begin(), plan->early.end(), [&](auto& e) { return e.first == count; });
  if (early != plan->early.end()) {
    const Failure failure = FailureByLog(*plan, count, early->second);
    plan->early.erase(early);
    group.arrivals.Arrive(plan->index, group.rank, 0, count);
    RejectCounted(request, *plan, count, failure);
    return;
  }
  Status resolved = ResolveBindings(*plan, request, &launch.slots, &launch.pins, &launch.digest);
  if (!resolved.ok()) {
    AppendFailure(plan, count, LogKind::kFailRefused, MaskOf(group.rank));
    group.arrivals.Arrive(plan->index, group.rank, 0, count);
    RejectCounted(request, *plan, count,
                  MakeFailure("LAUNCH_REFUSED", resolved.WithContext(LaunchName(*plan, count)), group.rank));
    return;
  }
  const uint64_t now = NowNs();
  Activate(plan, request, count, now);
  NoteTurn(request.origin, now);
  group.arrivals.Arrive(plan->index, group.rank, launch.digest, count);
}

void LaunchQueue::Activate(InstalledPlan* plan, const LaunchRequest& request, uint64_t count, uint64_t now) {
  Launch& launch = plan->active;
  launch.progress.Advance(LaunchEvent::kArrive);
  launch.origin = request.origin;
  launch.count = count;
  launch.run_limit_ns = RunLimitNs(request.deadline_ns, plan->group->deadline_ns);
  launch.arrive_ns = now;
  launch.deadline_ns =
      Saturating(now, request.deadline_ns != 0 ? request.deadline_ns : plan->group->deadline_ns);
  launch.next_late_ns = now + kLateAfterNs;
  launch.next_order_ns = now + kDesyncAfterNs;
  launch.suspicion = {};
  launch.start_ns = 0;
  launch.failure = {};
  launch.launch_number = 0;
  launch.speculative = false;
  ++plan->group->arrived;
  undecided_.push_back(plan);
}

Status LaunchQueue::ResolveBindings(const InstalledPlan& plan, const LaunchRequest& request,
                                    std::vector<runtime::SlotAddress>* slots,
                                    std::vector<std::shared_ptr<Registration>>* pins,
                                    uint64_t* digest) const {
  const EngineGroup& group = *plan.group;
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
  CompleteByCpu(request.origin, failure, listener_);
}

void LaunchQueue::RejectCounted(const LaunchRequest& request, const InstalledPlan& plan, uint64_t count,
                                const Failure& failure) {
  stats_.Count(plan.stats_row, static_cast<int>(failure.status.code()), 0);
  listener_->OnLaunchFailed(plan, count, failure.status);
  RejectArrival(request, plan.group->generation, failure);
}

void LaunchQueue::NoteTurn(const Origin& origin, uint64_t now) {
  if (!lanes_.ChoosesStream() || origin.kind == Origin::Kind::kDirect) return;
  const uint64_t ended = std::exchange(origin.channel->ended_ns, 0);
  if (ended != 0) lanes_.NoteTurn(origin.channel->ended_plan, now - ended, now);
}

bool LaunchQueue::MaySpeculate() {
  return options_.speculates && undecided_.empty() && !lanes_.WantsOtherStream() && speculation_.None();
}

bool LaunchQueue::Speculate(const LaunchRequest& request, std::shared_ptr<Forecast> forecast) {
  if (!MaySpeculate()) return false;
  InstalledPlan* plan = FindPlan(request.plan_id);
  if (plan == nullptr || !plan->program->has_first_kernel() || plan->never_speculative) return false;
  const EngineGroup& group = *plan->group;
  if (!group.MayStart() || group.left_mask != 0 || request.group_generation != group.generation) return false;
  if (group.signals[static_cast<size_t>(group.rank)] == nullptr) return false;
  if (group.session_id != 0 && request.origin.session_id != group.session_id) return false;
  if (timing_.TimesSteps(*plan, plan->arrivals + 1)) return false;
  ExpectedLaunch expected;
  uint64_t digest = 0;  // the peers' business, when it arrives; so are wrong bindings
  if (!ResolveBindings(*plan, request, &expected.slots, &expected.pins, &digest).ok()) return false;
  expected.plan = plan;
  expected.launch_number = plan->takes_launch_number ? group.launch_number + 1 : 0;
  expected.forecast = std::move(forecast);
  return speculation_.Enqueue(std::move(expected));
}

void LaunchQueue::KeepReleased(std::shared_ptr<Channel> channel) {
  if (!channel->consumer.words().Released()) return;
  if (const Result<uint64_t> fence = lanes_.EnqueueFence(); fence.ok()) {
    released_.push_back({*fence, std::move(channel)});
  }
}

bool LaunchQueue::ServeReleased() {
  return std::erase_if(released_, [this](const ReleasedChannel& each) {
           if (!lanes_.Passed(each.fence)) return false;
           ReleaseAgain(*each.channel);
           return true;
         }) > 0;
}

void LaunchQueue::ForEachActive(const std::function<void(const InstalledPlan&)>& visit) const {
  for (const InstalledPlan* plan : undecided_) visit(*plan);
  for (const InstalledPlan* plan : held_) visit(*plan);
  for (const InstalledPlan* plan : in_flight_) visit(*plan);
}

std::vector<uint64_t> LaunchQueue::GroupIds() const {
  std::vector<uint64_t> ids;
  for (const auto& [id, group] : groups_) ids.push_back(id);
  return ids;
}

}  // namespace tandem::engine
