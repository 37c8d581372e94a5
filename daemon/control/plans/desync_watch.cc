#include "daemon/control/plans/desync_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "daemon/control/base/blame.h"
#include "daemon/planner/planner.h"
#include "ipc/arrival_table.h"

namespace tandem::daemon {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};
// Engines answer at once, or are about to be replaced.
constexpr std::chrono::milliseconds kEngineAnswer{2000};

}  // namespace

std::optional<DesyncWatch::Found> DesyncWatch::Find(const GroupRecord& group, const PrepareBarrier& barrier,
                                                    size_t rank, uint64_t next_client_launch) {
  const auto waits = [&](size_t peer) TANDEM_REQUIRES(registry_mutex) {
    return peer != rank && !barrier.Taken(peer) && !group.members[peer].left;
  };
  const uint64_t renewed = group.client.renewal == nullptr ? 0 : group.client.renewal->number;
  for (size_t peer = 0; peer < group.client.pages.size() && next_client_launch != 0; ++peer) {
    const VerdictPage& page = group.client.pages[peer];
    // A launch ends on no rank before all ranks have made it.
    const uint64_t next = std::max(next_client_launch, group.client.pages[rank].Launched() + 1);
    if (waits(peer) && page.Launched() >= next)
      return Found{.plan_id = page.PlanOfLaunch(next), .launch = next, .peer = peer, .in_client = true};
    // Behind a renewal nobody has finished a launch with the numbers that it has left out.
    const uint64_t launch = std::max(page.Finished(), renewed) + 1;
    // Libraries that do not say what they have launched say what they wait in.
    if (waits(peer) && page.WaitsPlan() != 0 && page.WaitsSince() != 0 && next <= launch)
      return Found{.plan_id = page.WaitsPlan(), .launch = launch, .peer = peer, .in_client = true};
  }
  if (!group.arrivals) return std::nullopt;
  const auto table = ArrivalTable::Map(group.arrivals->get(), static_cast<int>(group.world()));
  if (!table.ok()) return std::nullopt;
  for (const auto& [id, plan] : group.plans) {
    if (plan.client) continue;
    const uint64_t own = table->Launched(plan.index, static_cast<int>(rank));
    for (size_t peer = 0; peer < group.world(); ++peer) {
      const uint64_t launch = table->Count(plan.index, static_cast<int>(peer));
      if (waits(peer) && launch > own) return Found{.plan_id = id, .launch = launch, .peer = peer};
    }
  }
  return std::nullopt;
}

Status DesyncWatch::Describe(const GroupRecord& group, const PrepareBarrier& barrier, const std::string& key,
                             size_t rank, const Found& found) {
  const auto plan = group.plans.find(found.plan_id);
  const std::string launch = "launch " + std::to_string(found.launch);
  const std::string what = "rank " + std::to_string(rank) + " prepares '" + key + "' while rank " +
                           std::to_string(found.peer) + " waits in " + launch;
  StatusDetail detail = BlameRank("DESYNC", static_cast<int>(rank), {}, group.members[rank].pid);
  if (plan == group.plans.end()) return Status(Code::kFailedPrecondition, what, std::move(detail));
  std::vector<OpRequest> requests;
  for (size_t each = 0; each < group.world(); ++each) {
    const auto& request = each == rank ? barrier.requests[rank] : plan->second.requests[each];
    if (!request) return Internal("a stored request does not parse");
    requests.push_back(*request);
  }
  const std::string full = what + " of '" + plan->second.key + "'";
  const Status differs = plan::CompareRequests(requests);
  if (differs.ok()) return Status(Code::kFailedPrecondition, full, std::move(detail));
  StatusDetail of_field = BlameRank(differs.detail().reason, static_cast<int>(rank), differs.detail().field,
                                    group.members[rank].pid);
  return Status(differs.code(), differs.message() + "; " + full, std::move(of_field));
}

bool DesyncWatch::FailLaunch(RegistryLock& lock, GroupRecord& group, size_t rank, const Found& found,
                             const Status& why) {
  Registry& registry = core_.registry;
  const int gpu = group.gpus[rank];
  engine::v1::Command command;
  engine::v1::FailLaunch& fail = *command.mutable_fail_launch();
  fail.set_plan_id(found.plan_id);
  fail.set_launch(found.launch);
  fail.set_code(static_cast<int>(why.code()));
  fail.set_message(why.message());
  fail.set_reason(why.detail().reason);
  fail.set_rank(static_cast<uint32_t>(rank));
  // All engines know the reason before the log has the failure.
  auto reported = std::make_shared<CommandBatch>();
  registry.PostToAll(group, command, reported);
  if (!lock.Outside([&] { return reported->Wait(Waiter::For(kEngineAnswer)); }).ok()) return false;
  fail.set_decides(true);
  auto decided = std::make_shared<CommandBatch>();
  registry.MailboxOf(gpu).Post(std::move(command), {}, decided);
  return lock.Outside([&] { return decided->Wait(Waiter::For(kEngineAnswer)); }).ok();
}

// A rank that renews the group prepares nothing before the renewal, for which it waits for the ranks that
// prepare.
std::optional<Status> DesyncWatch::Renewing(const GroupRecord& group, const PrepareBarrier& barrier) {
  const std::shared_ptr<Renewal>& renewal = group.client.renewal;
  if (renewal == nullptr || renewal->state() != RenewalState::kStopping) return std::nullopt;
  for (size_t peer = 0; peer < group.world(); ++peer) {
    if (barrier.Taken(peer) || !renewal->stopped.Taken(peer)) continue;
    return Status(Code::kFailedPrecondition,
                  "rank " + std::to_string(peer) + " has begun to renew group '" + group.name + "'",
                  BlameRank("RENEWING", static_cast<int>(peer), {}, group.members[peer].pid));
  }
  return std::nullopt;
}

void DesyncWatch::Await(RegistryLock& lock, const std::shared_ptr<GroupRecord>& group,
                        PrepareBarrier& barrier, const std::string& key, size_t rank,
                        uint64_t next_client_launch, const Waiter& waiter) {
  while (barrier.phase() == Barrier::Phase::kGathering) {
    const Waiter slice{std::min(waiter.deadline, Waiter::Clock::now() + kLookEvery), waiter.cancelled};
    if (barrier.AwaitEnd(lock, rank, slice) || waiter.Expired() || waiter.Cancelled()) return;
    if (barrier.phase() != Barrier::Phase::kGathering || !group->Lives()) return;
    // Ranks that have not come hear of it by their launches, or know it.
    const auto end = [&](const Status& reported) TANDEM_REQUIRES(registry_mutex) {
      for (size_t peer = 0; peer < group->world(); ++peer) {
        if (!barrier.Taken(peer)) barrier.Acknowledge(peer);
      }
      barrier.EndGathering(reported);
    };
    if (const std::optional<Status> renewing = Renewing(*group, barrier)) return end(*renewing);
    const std::optional<Found> found = Find(*group, barrier, rank, next_client_launch);
    if (!found || (found->in_client && group->client.stall.stalled())) continue;
    const Status why = Describe(*group, barrier, key, rank, *found);
    const Status named = why.WithContext("group '" + group->name + "'");
    if (found->in_client) {
      end(named);
      groups_.Stall(*group, named);
      return;
    }
    if (!FailLaunch(lock, *group, rank, *found, why)) continue;
    if (barrier.phase() == Barrier::Phase::kGathering) end(named);
    groups_.NoteEnginesStalled(*group, named);
    return;
  }
}

}  // namespace tandem::daemon
