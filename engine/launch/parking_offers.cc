// Parking, up to the lanes: a rank offers the launch that its channel has pushed and its stream has not
// reached, and takes the offer back. parking.cc has the rest.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/launch_queue.h"

namespace tandem::engine {

std::string WhyNeverParked(const Plan& plan, const plan::RankProgram& program, int hardware_queues) {
  const CompiledProgram& compiled = *plan.program;
  if (plan.uses_bulk) return "it uses the group's bulk area";
  if (!compiled.unguarded().empty()) return std::string(compiled.unguarded()) + " cannot be called off";
  if (program.signal_count > kGuardSignal) return "it uses the signals that parking needs";
  if (compiled.lanes() > hardware_queues) {
    return "it has " + std::to_string(compiled.lanes()) + " lanes, the GPU " +
           std::to_string(hardware_queues) + " hardware queues";
  }
  return "";
}

bool LaunchQueue::MayOffer() const {
  return may_offer_ && groups_.size() == 1 && groups_.begin()->second->parking;
}

std::string LaunchQueue::WhyNotParked(const Plan& plan) const {
  const Group& group = *plan.group;
  if (!group.parking) return group.world_size == 1 ? "the group has one rank" : "parking is off";
  if (!plan.never_parked.empty()) return plan.never_parked;
  if (groups_.size() > 1) return "there are " + std::to_string(groups_.size()) + " groups on this GPU";
  if (group.direct) return "the group has launches by gRPC";
  return "";
}

bool LaunchQueue::Offer(const LaunchRequest& request) {
  Plan* plan = FindPlan(request.plan_id);
  if (plan == nullptr || !plan->never_parked.empty() || plan->has_active) return false;
  Group& group = *plan->group;
  if (group.broken.has_value() || group.log_break_ns != 0 || group.left_mask != 0 || group.direct)
    return false;
  if (request.group_generation != group.generation) return false;
  if (group.session_id != 0 && request.origin.session_id != group.session_id) return false;
  const uint64_t count = plan->arrivals + 1;
  if (count <= plan->revoked) return false;
  for (const auto& [launch, entry] : plan->early) {
    if (launch == count) return false;
  }
  for (int rank = 0; rank < group.world_size; ++rank) {
    if (std::max(group.arrivals.Count(plan->index, rank), plan->first_count) < plan->arrivals) return false;
  }
  // What is wrong with it is told when it arrives.
  if (!ResolveBindings(plan, request).ok()) return false;
  plan->arrivals = count;
  Activate(plan, request, count);
  group.arrivals.Offer(plan->index, group.rank, plan->active.digest, count);
  return true;
}

void LaunchQueue::ArriveOffered(Plan* plan) {
  Launch& launch = plan->active;
  Group& group = *plan->group;
  SetArrived(plan, NowNs());
  if (!launch.parked.taken_back.has_value()) {
    group.arrivals.Arrive(plan->index, group.rank, launch.digest, launch.count);
    return;
  }
  Failure failure = FailureOf(*plan, launch.count, *launch.parked.taken_back);
  group.arrivals.Arrive(plan->index, group.rank, 0, launch.count);
  listener_->OnLaunchFailed(*plan, launch.count, failure.status);
  FailUndecided(plan, std::move(failure));
}

void LaunchQueue::WithdrawOffer(Plan* plan) {
  RemoveFromUndecided(plan);
  Launch& launch = plan->active;
  launch.origin.channel->offered = false;
  launch.origin.channel.reset();
  launch.pins.clear();
  plan->has_active = false;
  --plan->arrivals;
  --plan->group->arrived;
}

void LaunchQueue::WithdrawOffers(Group* group) {
  std::vector<Plan*> offered;
  for (Plan* plan : undecided_) {
    if (plan->group == group && !plan->active.arrived) offered.push_back(plan);
  }
  for (Plan* plan : offered) WithdrawOffer(plan);
}

void LaunchQueue::RevokeOffers() {
  std::vector<std::pair<Plan*, uint64_t>> offered;
  for (Plan* plan : undecided_) {
    // One that has arrived since may still be parked, as long as some other rank has not.
    const uint64_t count = plan->active.count;
    const Group& group = *plan->group;
    if (plan->revoked < count && group.arrivals.Offered(plan->index, group.rank) == count)
      offered.emplace_back(plan, count);
  }
  for (const auto& [plan, count] : offered) RevokeOffer(plan, count);
}

// Whoever appends PARK has read the log up to it: so none comes behind this entry from an engine that had the
// plan when it read it, nor from one that got the plan later, for that finds no offer. PARK before it
// decides: the launch is on the lanes then.
void LaunchQueue::RevokeOffer(Plan* plan, uint64_t count) {
  const auto undecided = [&] {
    return plan->has_active && plan->active.count == count && !plan->active.started;
  };
  const LogEntry entry{.kind = LogKind::kRevoke,
                       .mask = static_cast<uint8_t>(1u << plan->group->rank),
                       .plan = static_cast<uint32_t>(plan->id) & kLogIdMask,
                       .count = static_cast<uint16_t>(count)};
  DrainLog();
  if (!undecided()) return;
  plan->group->arrivals.Revoke(plan->index, plan->group->rank);
  bool appended = false;
  while (fatal_.ok() && undecided() && !appended) {
    appended = log_.TryAppend(read_position_, entry);
    DrainLog();
  }
  if (!appended || !undecided() || plan->active.arrived) return;
  const std::optional<LogEntry> failed = plan->active.parked.taken_back;
  WithdrawOffer(plan);
  if (failed.has_value()) plan->early.emplace_back(count, *failed);
}

void LaunchQueue::RefuseOffer(Plan* plan, LogKind kind, bool comes) {
  Group& group = *plan->group;
  const uint64_t count = plan->active.count;
  const auto own = static_cast<uint8_t>(1u << group.rank);
  AppendFailure(plan, count, kind, own);
  if (!plan->has_active || plan->active.count != count) return;
  if (plan->active.started) return TakeBack(plan, kind, own);  // the log says PARK first
  if (!plan->active.parked.taken_back.has_value()) return;     // the log has lapped this engine, which ends
  const LogEntry entry = *plan->active.parked.taken_back;
  WithdrawOffer(plan);
  if (comes) {
    plan->early.emplace_back(count, entry);
    return;
  }
  plan->arrivals = count;
  group.arrivals.Arrive(plan->index, group.rank, 0, count);
  listener_->OnLaunchFailed(*plan, count, FailureOf(*plan, count, entry).status);
}

void LaunchQueue::AbandonUnarrived(const Group* group, const Channel* channel, LogKind kind) {
  const auto concerned = [&](const Plan* plan) {
    return !plan->active.arrived && !plan->group->broken.has_value() &&
           (group == nullptr || plan->group == group) &&
           (channel == nullptr || plan->active.origin.channel.get() == channel);
  };
  std::vector<Plan*> offered, parked;
  std::copy_if(undecided_.begin(), undecided_.end(), std::back_inserter(offered), concerned);
  std::copy_if(in_flight_.begin(), in_flight_.end(), std::back_inserter(parked),
               [&](const Plan* plan) { return plan->active.parked.Waits() && concerned(plan); });
  for (Plan* plan : parked) TakeBack(plan, kind, static_cast<uint8_t>(1u << plan->group->rank));
  for (Plan* plan : offered) {
    if (plan->has_active && !plan->active.started) RefuseOffer(plan, kind, channel == nullptr);
  }
}

bool LaunchQueue::ReadyToPark(const Plan& plan) const {
  if (!plan.never_parked.empty() || plan.active.count <= plan.revoked ||
      plan.active.parked.taken_back.has_value())
    return false;
  for (int rank = 0; rank < plan.group->world_size; ++rank) {
    if (plan.group->arrivals.Offered(plan.index, rank) != plan.active.count) return false;
  }
  return MismatchedRanks(plan) == 0;
}

}  // namespace tandem::engine
