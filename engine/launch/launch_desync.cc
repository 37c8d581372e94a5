// The launch queue: ranks that make calls in different orders, and how a stalled group goes on.
//
// In an ordered group all ranks make all calls in one order. Say this rank has launched plan P, but not plan
// Q, while another rank has launched Q, but not P. Then one of the two has made another call than its peers,
// and neither launch will ever have all ranks. "Has not launched" is certain only after the engine has looked
// at all channels twice. The first look may have passed a channel just before the launch was pushed there.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/launch/launch_outcome.h"
#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kSettledLooks = 2;

}  // namespace

InstalledPlan* LaunchQueue::CountedPlan(const LaunchEntry& entry, uint64_t session_id) {
  InstalledPlan* plan = FindPlan(entry.plan_id);
  if (plan == nullptr || !plan->group->ordered) return nullptr;
  const EngineGroup& group = *plan->group;
  const bool foreign = group.session_id != 0 && session_id != 0 && group.session_id != session_id;
  return foreign || entry.group_generation != group.generation ? nullptr : plan;
}

void LaunchQueue::CountQueued(const LaunchEntry& entry, uint64_t session_id, bool more) {
  InstalledPlan* plan = CountedPlan(entry, session_id);
  if (plan == nullptr || (!more && plan->queued == 0)) return;
  plan->queued += more ? 1 : -1;
  PublishLaunched(*plan);
}

void LaunchQueue::NoteCaptured(const LaunchEntry& entry, uint64_t session_id) {
  InstalledPlan* plan = CountedPlan(entry, session_id);
  if (plan == nullptr) return;
  plan->in_graphs = true;
  PublishLaunched(*plan);
}

void LaunchQueue::PublishLaunched(const InstalledPlan& plan) {
  EngineGroup& group = *plan.group;
  if (group.ordered) group.arrivals.SetLaunched(plan.index, group.rank, plan.Launched());
}

void LaunchQueue::CountLooks() {
  for (auto& [id, group] : groups_) {
    if (group->ordered && group->arrived > 0) group->arrivals.CountLook(group->rank);
  }
}

const InstalledPlan* LaunchQueue::LaunchedInstead(const InstalledPlan& plan, int rank) const {
  const ArrivalTable& arrivals = plan.group->arrivals;
  const uint64_t theirs = arrivals.Launched(plan.index, rank);
  if (theirs == kUnknownLaunches || theirs >= plan.active.count) return nullptr;
  for (const auto& [key, other] : plans_) {
    if (other->group != plan.group || other.get() == &plan || other->in_graphs) continue;
    const uint64_t launched = arrivals.Launched(other->index, rank);
    if (launched != kUnknownLaunches && launched > other->Launched()) return other.get();
  }
  return nullptr;
}

uint8_t LaunchQueue::FindDesync(InstalledPlan* plan, uint8_t missing, uint64_t now) {
  Launch& launch = plan->active;
  EngineGroup& group = *plan->group;
  if (!group.ordered || now < launch.next_order_ns) return 0;
  launch.next_order_ns = now + kDesyncEveryNs;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if ((missing & (1u << rank)) == 0) continue;
    const InstalledPlan* instead = LaunchedInstead(*plan, rank);
    if (instead == nullptr) continue;
    const uint64_t looks = group.arrivals.Looks(rank), own_looks = group.arrivals.Looks(group.rank);
    Suspicion& suspicion = launch.suspicion;
    if (suspicion.rank != rank || suspicion.plan_id != instead->id) {
      suspicion = {.rank = rank, .looks = looks, .own_looks = own_looks, .plan_id = instead->id};
    } else if (looks >= suspicion.looks + kSettledLooks && own_looks >= suspicion.own_looks + kSettledLooks) {
      return static_cast<uint8_t>(1u << rank);
    }
    return 0;
  }
  launch.suspicion = {};
  return 0;
}

std::string LaunchQueue::WaitsIn(const InstalledPlan& plan, int rank) const {
  const ArrivalTable& arrivals = plan.group->arrivals;
  for (const auto& [key, other] : plans_) {
    if (other->group != plan.group || other.get() == &plan) continue;
    const uint64_t count = arrivals.Count(other->index, rank);
    for (int peer = 0; peer < plan.group->world_size; ++peer) {
      if (arrivals.Count(other->index, peer) >= count) continue;
      return "; rank " + std::to_string(rank) + " waits for rank " + std::to_string(peer) + " in " +
             LaunchName(*other, count) + ", " + other->name;
    }
  }
  return {};
}

Failure LaunchQueue::FailureByLog(const InstalledPlan& plan, uint64_t count, const LogEntry& entry) const {
  const std::optional<EngineGroup::ReportedFailure>& reported = plan.group->reported;
  if (entry.kind == LogKind::kFailDeadline && entry.mask != 0) {
    Failure late = FailureOf(plan, count, entry);
    const Status& why = late.status;
    late.status =
        Status(why.code(), why.message() + WaitsIn(plan, std::countr_zero(entry.mask)), why.detail());
    return late;
  }
  if (entry.kind != LogKind::kFailDesync || entry.mask == 0) return FailureOf(plan, count, entry);
  if (reported && reported->plan_id == plan.id && reported->count == count) return reported->failure;
  const int rank = std::countr_zero(entry.mask);
  const ArrivalTable& arrivals = plan.group->arrivals;
  for (const auto& [key, other] : plans_) {
    if (other->group != plan.group || other.get() == &plan) continue;
    // Some rank has not launched it: the one that waits in `plan`.
    const uint64_t launched = arrivals.Launched(other->index, rank);
    bool is_ahead = false;
    for (int peer = 0; peer < plan.group->world_size; ++peer)
      is_ahead |= arrivals.Launched(other->index, peer) < launched;
    if (launched == kUnknownLaunches || !is_ahead) continue;
    return MakeFailure("DESYNC",
                       FailedPrecondition(LaunchName(plan, count) + ", " + plan.name + ": rank " +
                                          std::to_string(rank) + " launched " + other->name + " instead"),
                       rank);
  }
  return FailureOf(plan, count, entry);
}

Status LaunchQueue::NoteReason(uint64_t plan_id, uint64_t count, Failure failure) {
  InstalledPlan* plan = FindPlan(plan_id);
  if (plan == nullptr) return NotFound("no plan " + std::to_string(plan_id));
  plan->group->reported = {plan_id, count, std::move(failure)};
  return Status::Ok();
}

Status LaunchQueue::FailUnmade(uint64_t plan_id, uint64_t count) {
  InstalledPlan* plan = FindPlan(plan_id);
  if (plan == nullptr) return NotFound("no plan " + std::to_string(plan_id));
  const EngineGroup& group = *plan->group;
  if (!group.ordered || plan->Launched() >= count)
    return FailedPrecondition(LaunchName(*plan, count) + " has been made, or may be");
  if (!group.stalled)
    AppendFailure(plan, count, LogKind::kFailDesync, static_cast<uint8_t>(1u << group.rank));
  return Status::Ok();
}

void LaunchQueue::StallForRenewal(EngineGroup* group) {
  const LogEntry entry{.kind = LogKind::kStall,
                       .mask = static_cast<uint8_t>(1u << group->rank),
                       .plan = static_cast<uint32_t>(group->id) & kLogIdMask,
                       .count = static_cast<uint16_t>(group->generation)};
  while (fatal_.ok()) {
    DrainLog();
    if (group->stalled || group->Broken() || log_.TryAppend(read_position_, entry)) break;
  }
  DrainLog();
}

bool LaunchQueue::StopForRenewal(EngineGroup* group) {
  if (!group->stalled) group->stalled = RenewingFailure(static_cast<uint8_t>(1u << group->rank));
  CancelSpeculation();
  if (!Idle(*group)) return false;
  for (auto& [key, plan] : plans_) {
    if (plan->group == group) group->arrivals.Arrive(plan->index, group->rank, 0, plan->arrivals);
  }
  return true;
}

void LaunchQueue::Resume(EngineGroup* group) {
  // Entries up to here are about launches before the renewal.
  DrainLog();
  for (auto& [key, plan] : plans_) {
    if (plan->group != group) continue;
    for (int rank = 0; rank < group->world_size; ++rank)
      plan->arrivals = std::max(plan->arrivals, group->arrivals.Count(plan->index, rank));
    plan->early.clear();
    group->arrivals.Arrive(plan->index, group->rank, 0, plan->arrivals);
    PublishLaunched(*plan);
  }
  group->reported.reset();
  group->stalled.reset();
}

}  // namespace tandem::engine
