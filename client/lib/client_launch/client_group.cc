#include "client/lib/client_launch/client_group.h"

#include <utility>

#include "client/lib/base/launch_state.h"
#include "common/deadline.h"
#include "kernels/host/word_wait.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;
using runtime::ClientLaunchEvent;
using runtime::ClientLaunchState;

}  // namespace

Status ClientGroup::Renewing() const {
  // A group that breaks asleep has a verdict.
  if (suspended_.load(std::memory_order_acquire))
    return page_.FirstAbortedLaunch() != 0 ? page_.Reason() : SuspendedGroup();
  return FailedPrecondition("this rank has begun to renew the group, and the renewal has not ended")
      .WithDetail({.reason = "RENEWING", .started = false});
}

Status ClientGroup::Refusal() const {
  switch (state()) {
    case ClientLaunchState::kRunning:
    case ClientLaunchState::kFailing:
    case ClientLaunchState::kAwaitingVerdict: return Status::Ok();
    case ClientLaunchState::kStalled:
    case ClientLaunchState::kRenewing:
    case ClientLaunchState::kOver: break;
  }
  Status failure = Failure();
  return failure.ok() && state() == ClientLaunchState::kRenewing ? Renewing() : failure;
}

void ClientGroup::Report(uint64_t launch, const LaunchedPlan& plan, const Status& why) {
  FailureReport report;
  report.group_id = group_id_;
  report.plan_id = plan.id;
  report.rows = plan.rows;
  report.launch = launch;
  report.awaited_rank = why.detail().ranks.empty() ? -1 : static_cast<int>(why.detail().ranks.front());
  report.renewals = renewals_.load(std::memory_order_acquire);
  report.status = why;
  report_(std::move(report));
}

void ClientGroup::ShowWaiting(bool is_under_way, uint64_t plan_id) {
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch());
  page_.SetWaitsPlan(plan_id);
  page_.SetWaitsSince(is_under_way ? static_cast<uint64_t>(now.count()) : 0);
}

Status ClientGroup::Run(ClientProgram& program, const LaunchedPlan& plan, uint16_t tag,
                        std::chrono::nanoseconds deadline, std::span<const runtime::SlotAddress> slots) {
  std::lock_guard lock(run_mutex_);
  TANDEM_RETURN_IF_ERROR(queue_->Failed());
  ClientLaunch launch;
  launch.number = finished() + 1;
  launch.tag = tag;
  launch.rank = rank_;
  launch.deadline = Clock::now() + Bounded(deadline);
  launch.page = &page_;
  ShowWaiting(true, plan.id);
  Status status = program.Run(launch, slots);
  ShowWaiting(false);
  if (status.ok()) {
    // Last of all: the next launch may begin.
    counter_.store(launch.number, std::memory_order_release);
    page_.SetFinished(launch.number);
    return status;
  }
  host::Backoff backoff;
  std::optional<Status> failure = Judge(launch.number, plan, status);
  for (; !failure.has_value(); failure = Judge(launch.number, plan, status)) backoff.Pause();
  return *failure;
}

std::optional<Status> ClientGroup::Judge(uint64_t launch, const LaunchedPlan& plan, const Status& why) {
  std::lock_guard lock(verdict_mutex_);
  if (Status kept = Failure(); !kept.ok()) return kept;
  const bool is_judged = page_.Aborts(launch);
  if (lifecycle_.Apply(ClientLaunchEvent::kLaunchFailed) && !is_judged &&
      lifecycle_.Apply(ClientLaunchEvent::kReported)) {
    reported_at_ = Clock::now();
    Report(launch, plan, why);
  }
  if (is_judged) {
    (void)lifecycle_.Apply(ClientLaunchEvent::kVerdict, page_.Reason());
  } else if (Clock::now() - reported_at_ >= kVerdictWaitBudget) {
    (void)lifecycle_.Apply(ClientLaunchEvent::kVerdictLate, why);
  }
  if (AwaitsVerdict()) return std::nullopt;
  if (Status kept = Failure(); !kept.ok()) return kept;
  // Within a renewal: no report interrupts it.
  return is_judged ? page_.Reason() : why;
}

void ClientGroup::Refuse(const LaunchedPlan& plan, const Status& why) {
  const Status refused(Code::kFailedPrecondition, "a launch was refused on this rank: " + why.message(),
                       {.reason = "LAUNCH_REFUSED", .field = why.detail().field, .started = false});
  if (lifecycle_.Apply(ClientLaunchEvent::kLaunchRefused, refused)) Report(NextLaunch(), plan, refused);
}

void ClientGroup::NoteLaunched(uint64_t plan_id) {
  const uint64_t number = launched_.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (!in_graphs_.load(std::memory_order_acquire)) page_.SetLaunched(number, plan_id);
}

void ClientGroup::NoteCaptured() {
  in_graphs_.store(true, std::memory_order_release);
  page_.SetLaunched(0, 0);
}

uint64_t ClientGroup::NextLaunch() const {
  if (in_graphs_.load(std::memory_order_acquire)) return 0;
  return launched_.load(std::memory_order_acquire) + 1;
}

void ClientGroup::Restart(uint64_t number) {
  counter_.store(number, std::memory_order_release);
  launched_.store(number, std::memory_order_release);
  if (!in_graphs_.load(std::memory_order_acquire)) page_.SetLaunched(number, 0);
}

void ClientGroup::EndRenewal(uint64_t renewals) {
  renewals_.store(renewals, std::memory_order_release);
  suspended_.store(false, std::memory_order_release);
  (void)lifecycle_.Apply(ClientLaunchEvent::kRenewed);
}

void ClientGroup::FailRenewal() {
  // The page may say more: that the group has broken, or which rank has begun the renewal first.
  (void)lifecycle_.Apply(ClientLaunchEvent::kRenewalFailed,
                         page_.FirstAbortedLaunch() != 0 ? page_.Reason() : Renewing());
}

bool ClientGroup::BeginSuspension() {
  suspended_.store(true, std::memory_order_release);
  const bool begun = lifecycle_.Apply(ClientLaunchEvent::kRenewalBegun);
  if (!begun) suspended_.store(false, std::memory_order_release);
  return begun;
}

void ClientGroup::CancelSuspension() { EndRenewal(renewals_.load(std::memory_order_acquire)); }

void ClientGroup::CutOff(const Status& why) {
  std::lock_guard lock(verdict_mutex_);
  page_.Abort(1, why);
  (void)lifecycle_.Apply(ClientLaunchEvent::kSessionOver);
}

}  // namespace tandem::client
