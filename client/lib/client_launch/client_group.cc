#include "client/lib/client_launch/client_group.h"

#include <utility>

#include "common/deadline.h"
#include "kernels/host/word_wait.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Status ClientGroup::Kept() const {
  if (!has_failed_.load(std::memory_order_acquire)) return Status::Ok();
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

Status ClientGroup::Failed() const {
  if (Status kept = Kept(); !kept.ok()) return kept;
  return page_.Aborts(finished() + 1) ? page_.Reason() : Status::Ok();
}

bool ClientGroup::Keep(const Status& why) {
  std::lock_guard lock(failure_mutex_);
  if (!failure_.ok()) return false;
  failure_ = why;
  has_failed_.store(true, std::memory_order_release);
  return true;
}

void ClientGroup::Report(uint64_t launch, uint64_t plan_id, const Status& why) {
  FailureReport report;
  report.group_id = group_id_;
  report.plan_id = plan_id;
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

Status ClientGroup::Run(ClientProgram& program, uint64_t plan_id, uint16_t tag,
                        std::chrono::nanoseconds deadline, std::span<const runtime::SlotAddress> slots) {
  std::lock_guard lock(run_mutex_);
  TANDEM_RETURN_IF_ERROR(Failed());
  ClientLaunch launch;
  launch.number = finished() + 1;
  launch.tag = tag;
  launch.rank = rank_;
  launch.deadline = Clock::now() + Bounded(deadline);
  launch.page = &page_;
  ShowWaiting(true, plan_id);
  Status status = program.Run(launch, slots);
  ShowWaiting(false);
  if (status.ok()) {
    // Last of all: the next launch may begin.
    counter_.store(launch.number, std::memory_order_release);
    page_.SetFinished(launch.number);
    return status;
  }
  if (!page_.Aborts(launch.number)) {
    Report(launch.number, plan_id, status);
    const auto end = Clock::now() + kVerdictPatience;
    host::Backoff backoff;
    while (!page_.Aborts(launch.number) && Clock::now() < end) backoff.Pause();
  }
  if (page_.Aborts(launch.number)) status = page_.Reason();
  Keep(status);
  return status;
}

void ClientGroup::Refuse(uint64_t plan_id, const Status& why) {
  const Status refused(Code::kFailedPrecondition, "a launch was refused on this rank: " + why.message(),
                       {.reason = "LAUNCH_REFUSED", .field = why.detail().field, .started = false});
  if (Keep(refused)) Report(queue_->NextLaunch(), plan_id, refused);
}

void ClientGroup::Renew(uint64_t renewals) {
  renewals_.store(renewals, std::memory_order_release);
  std::lock_guard lock(failure_mutex_);
  failure_ = Status::Ok();
  has_failed_.store(false, std::memory_order_release);
}

void ClientGroup::CutOff(const Status& why) {
  std::lock_guard lock(failure_mutex_);
  page_.Abort(1, why);
}

}  // namespace tandem::client
