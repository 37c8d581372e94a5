#include "daemon/control/client_groups/renewal_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "daemon/control/base/blame.h"

namespace tandem::daemon {

Result<v1::RenewGroupReply> RenewalService::Renew(const SessionRef& session,
                                                  const v1::RenewGroupRequest& request,
                                                  const Waiter& waiter) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          registry.FindGroup(*session, request.group_id(), &rank));
  if (!group->lifecycle.why().ok()) return group->lifecycle.why();
  if (group->state() == GroupState::kAsleep) return installer_.Installed(*group);
  if (group->client.pages.empty() && !group->RenewsEngines()) {
    return FailedPrecondition("group '" + group->name + "' has no plan that is placed in the client");
  }
  const auto r = static_cast<size_t>(rank);
  switch (request.step()) {
    case v1::RenewGroupRequest::STOPPED: return Stop(lock, group, r, request.number(), waiter);
    case v1::RenewGroupRequest::READY: return Ready(lock, *group, r, waiter);
    default: return InvalidArgument("a renewal has no such step").WithDetail({.field = "step"});
  }
}

void RenewalService::EndLaunchesWithout(GroupRecord& group, size_t rank, uint64_t number) {
  if (group.RenewsEngines()) {
    engine::v1::Command command;
    command.mutable_renew_group()->set_group_id(group.id);
    command.mutable_renew_group()->set_step(engine::v1::RenewGroup::STALL);
    core_.registry.MailboxOf(group.gpus[rank]).Post(std::move(command));
  }
  const Status why(Code::kFailedPrecondition,
                   "rank " + std::to_string(rank) + " has begun to renew group '" + group.name + "'",
                   BlameRank("RENEWING", static_cast<int>(rank), {}, group.members[rank].pid));
  group.AbortClientLaunches(number + 1, why, static_cast<int>(rank));
}

Status RenewalService::RenewEngines(const std::shared_ptr<GroupRecord>& group, const Waiter& waiter) {
  Registry& registry = core_.registry;
  const auto command_of = [&](engine::v1::RenewGroup::Step step) {
    engine::v1::Command command;
    command.mutable_renew_group()->set_group_id(group->id);
    command.mutable_renew_group()->set_step(step);
    return command;
  };
  Status status;
  // Commands that were posted before go first: launches by gRPC. The answers come when launches have ended,
  // so they do not come through mailboxes, where nothing may wait behind them.
  auto before = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(installer_.AwaitInstalled(lock, *group, waiter));
    engine::v1::Command ping;
    ping.mutable_ping();
    registry.PostToAll(*group, ping, before);
  }
  status = before->Wait(waiter);
  for (size_t rank = 0; status.ok() && rank < group->world(); ++rank) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(waiter.deadline - Waiter::Clock::now());
    status = core_.engines.Call(group->gpus[rank], command_of(engine::v1::RenewGroup::STOP), {},
                                std::max(left, std::chrono::milliseconds(1)));
    if (status.code() == Code::kDeadlineExceeded)
      status = status.WithContext("rank " + std::to_string(rank) + " still has launches in flight");
  }
  if (status.ok()) {
    auto resumed = std::make_shared<CommandBatch>();
    {
      RegistryLock lock(registry);
      ++group->engine_renewals;
      group->engine_stall.Apply(StallEvent::kRenewed);
      registry.Touch(*group);
      engine::v1::Command resume = command_of(engine::v1::RenewGroup::RESUME);
      resume.mutable_renew_group()->set_renewals(group->engine_renewals);
      registry.PostToAll(*group, resume, resumed);
    }
    status = resumed->Wait(waiter);
  }
  // The group is installed anew behind an engine's restart.
  const bool restarted = status.code() == Code::kUnavailable || status.code() == Code::kNotFound;
  return restarted ? Aborted("an engine of group '" + group->name + "' was restarted: begin again") : status;
}

Result<v1::RenewGroupReply> RenewalService::Stop(RegistryLock& lock,
                                                 const std::shared_ptr<GroupRecord>& shared_group,
                                                 size_t rank, uint64_t number, const Waiter& waiter) {
  GroupRecord& group = *shared_group;
  if (number > kMaxLaunchNumber) {
    return InvalidArgument("no launch has the number " + std::to_string(number))
        .WithDetail({.field = "number"});
  }
  std::shared_ptr<Renewal>& current = group.client.renewal;
  bool goes_on = current && current->UnderWay();
  if (goes_on && current->state() == RenewalState::kSettingCounters) {
    // The answer to this rank's first call was lost, or its user has begun again. Then its peers have to.
    if (current->ready.Taken(rank) || number + kRenewalSkips > current->number) {
      current->EndGathering(Status(
          Code::kAborted,
          "rank " + std::to_string(rank) + " has begun the renewal of group '" + group.name + "' again"));
      goes_on = false;
    }
  }
  if (!goes_on) current = std::make_shared<Renewal>(group.world(), group.name, group.illegal_transition);
  const std::shared_ptr<Renewal> renewal = current;
  const bool gathering = renewal->state() == RenewalState::kStopping;
  if (gathering && !renewal->stopped.Taken(rank)) EndLaunchesWithout(group, rank, number);
  if (gathering) renewal->stopped.Take(rank, waiter.deadline);
  renewal->number = std::max(renewal->number, number + kRenewalSkips);
  if (gathering && renewal->stopped.Complete()) {
    renewal->stopped.BeginWork();
    (void)renewal->Apply(RenewalEvent::kAllStopped);
    Status status;
    if (group.RenewsEngines()) {
      const Waiter for_all = GroupInstaller::ForAllRanks(shared_group, renewal->stopped.FirstDeadline());
      status = lock.Outside([&] { return RenewEngines(shared_group, for_all); });
      if (!group.lifecycle.why().ok()) status = group.lifecycle.why();
    }
    renewal->stopped.End(status);
    (void)renewal->Apply(status.ok() ? RenewalEvent::kEnginesRenewed : RenewalEvent::kFailed);
  }
  return Await(lock, group, *renewal, renewal->stopped, rank, waiter);
}

Result<v1::RenewGroupReply> RenewalService::Ready(RegistryLock& lock, GroupRecord& group, size_t rank,
                                                  const Waiter& waiter) {
  const std::shared_ptr<Renewal> renewal = group.client.renewal;
  const bool have_stopped = renewal && renewal->stopped.over() && renewal->stopped.verdict().ok();
  if (!have_stopped)
    return Aborted("no renewal of group '" + group.name + "' has stopped all ranks: begin again");
  if (renewal->state() == RenewalState::kSettingCounters) {
    renewal->ready.Take(rank, waiter.deadline);
    if (renewal->ready.Complete()) {
      // No rank launches before its answer, so that no kernel looks at the pages now.
      for (VerdictPage& page : group.client.pages) page.Clear();
      group.client.stall.Apply(StallEvent::kRenewed);
      group.failures.clear();
      // The count for client-placed launches: their reports carry it.
      if (!group.client.pages.empty()) ++group.client.renewals;
      core_.registry.Touch(group);
      renewal->ready.End(Status::Ok());
      (void)renewal->Apply(RenewalEvent::kAllReady);
      core_.LogOf(group.payer.uid, LogSeverity::kInfo, "group=" + std::to_string(group.id) + " renewed");
    }
  }
  return Await(lock, group, *renewal, renewal->ready, rank, waiter);
}

Result<v1::RenewGroupReply> RenewalService::Await(RegistryLock& lock, const GroupRecord& group,
                                                  Renewal& renewal, Barrier& step, size_t rank,
                                                  const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(step.Await(lock, rank, waiter));
  // This call's deadline may have ended the meeting, and with it the attempt of all ranks.
  if (!step.verdict().ok() && renewal.UnderWay()) (void)renewal.Apply(RenewalEvent::kFailed);
  TANDEM_RETURN_IF_ERROR(step.verdict());
  v1::RenewGroupReply reply;
  reply.set_number(renewal.number);
  reply.set_renewals(group.client.renewals);
  return reply;
}

}  // namespace tandem::daemon
