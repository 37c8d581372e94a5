// Plan: waiting and releasing, whoever launches.
#include "client/lib/plan_handle.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "client/lib/base/backoff.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

// How long a release waits for launches in flight.
constexpr Milliseconds kReleaseDeadline(60000);

}  // namespace

Status MoreSevere(Status first, Status second) {
  if (first.ok()) return second;
  if (second.ok()) return first;
  const std::optional<bool> started = MoreStarted(first.detail().started, second.detail().started);
  const bool second_counts = second.code() == Code::kAborted && first.code() != Code::kAborted;
  return (second_counts ? second : first).WithStarted(started);
}

std::vector<PlanHandle::SlotRule> PlanHandle::RulesOf(const OpRequest& request) {
  std::vector<SlotRule> rules;
  for (const Operand& operand : request.operands)
    rules.push_back({std::max<size_t>(1, DTypeBytes(operand.spec.dtype)), operand.symmetric});
  return rules;
}

PlanHandle::PlanHandle(std::shared_ptr<GroupHandle> group, PlanInfo info, const OpRequest& request)
    : group_(std::move(group)),
      info_(std::move(info)),
      rules_(RulesOf(request)),
      state_(std::make_shared<ClientPlanState>(info_.plan_id, group_->state())) {}

void PlanHandle::ReleaseAtEnd() {
  IgnoreExceptions([&] {
    if (!state_->Released() && session().CanCallDaemon())
      (void)session().control().ReleasePlan(info_.plan_id);
  });
}

ClientSession& PlanHandle::session() const { return *group_->session(); }

Status PlanHandle::CheckNotReleased() const { return state_->Released() ? HasBeenReleased() : Status::Ok(); }

Status PlanHandle::HasBeenReleased() const {
  return FailedPrecondition("plan '" + info_.key + "' has been released")
      .WithDetail({.reason = "PLAN_RELEASED"});
}

Status PlanHandle::NoSuchLaunch(uint64_t launch) const {
  return NotFound("no launch " + std::to_string(launch) + " of plan '" + info_.key +
                  "', or its outcome was returned already");
}

Status PlanHandle::WaitPending(Clock::time_point deadline) {
  PollBackoff backoff;
  while (true) {
    session().ReapAll();
    if (state_->Pending() == 0 && !AwaitsVerdict()) return Status::Ok();
    if (Clock::now() >= deadline) {
      return DeadlineExceeded(std::to_string(state_->Pending()) + " launches of plan '" + info_.key +
                              "' have not ended")
          .WithDetail({.reason = kNotEnded});
    }
    backoff.Pause();
  }
}

Status PlanHandle::Wait(Milliseconds wait) try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  Clock::time_point deadline = Clock::now() + Bounded(wait);
  TANDEM_RETURN_IF_ERROR(WaitPending(deadline));
  if (std::optional<Status> failure = state_->TakeFailure(kAnyStream)) {
    // A call returns one failure. This one is returned for all launches that this Wait has waited for.
    Status reported = *std::move(failure);
    while ((failure = state_->TakeFailure(kAnyStream)))
      reported = MoreSevere(std::move(reported), *std::move(failure));
    return MoreSevere(std::move(reported), WaitDirect(deadline));
  }
  return WaitDirect(deadline);
}
TANDEM_CATCH_TO_STATUS

Result<bool> PlanHandle::Query() try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  session().ReapAll();
  if (std::optional<Status> failure = state_->TakeFailure(kAnyStream)) return *failure;
  if (state_->Pending() != 0 || AwaitsVerdict()) return false;
  return QueryDirect();
}
TANDEM_CATCH_TO_STATUS

Status PlanHandle::Release() try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  if (state_->SetReleased(true)) return HasBeenReleased();
  Status ended = WaitPending(Clock::now() + kReleaseDeadline);
  if (!ended.ok()) {
    state_->SetReleased(false);
    return ended;
  }
  Status released = session().control().ReleasePlan(info_.plan_id);
  if (!released.ok() && released.code() != Code::kNotFound) state_->SetReleased(false);
  return released;
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
