// Group: suspending and resuming.
#include <algorithm>
#include <utility>

#include "client/lib/base/backoff.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem::client {

std::vector<std::shared_ptr<TensorHandle>> GroupHandle::Tensors() {
  std::lock_guard lock(tensors_mutex_);
  std::vector<std::shared_ptr<TensorHandle>> alive;
  for (const auto& known : tensors_) {
    if (std::shared_ptr<TensorHandle> tensor = known.lock()) alive.push_back(std::move(tensor));
  }
  return alive;
}

Status GroupHandle::StopForSuspension(std::chrono::steady_clock::time_point end) {
  const std::shared_ptr<ClientGroup> group = client_group();
  uint64_t finished = 0;
  if (group != nullptr) {
    TANDEM_RETURN_IF_ERROR(group->queue().Failed());
    TANDEM_ASSIGN_OR_RETURN(finished, group->queue().Stop(end));
  }
  TANDEM_RETURN_IF_ERROR(AwaitLaunches(end));
  session_->ReapAll();
  if (group != nullptr && !group->BeginSuspension())
    return FailedPrecondition("a launch of the group has failed: renew it before it is suspended");
  Result<SuspensionInfo> stopped =
      session_->control().Suspend(id(), SuspendStep::kStopped, finished, TimeLeft(end));
  if (stopped.ok()) {
    suspended_segments_ = std::move(stopped->segment_ids);
  } else if (group != nullptr) {
    group->CancelSuspension();
  }
  return stopped.status();
}

Status GroupHandle::Suspend(bool keep, Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  std::lock_guard lock(suspension_mutex_);
  const auto end = std::chrono::steady_clock::now() + Bounded(deadline);
  if (!state_->suspended()) {
    TANDEM_RETURN_IF_ERROR(state_->Broken());
    // No launch is made from here on, by any thread.
    state_->SetSuspended();
    Status status = StopForSuspension(end);
    if (!status.ok()) {
      state_->Resume(state_->generation());
      return status;
    }
    for (const auto& tensor : Tensors()) {
      if (keep && status.ok()) status = tensor->SaveContents();
      if (!keep) tensor->DropContents();
    }
    // Its memory is there still: Resume brings it back.
    TANDEM_RETURN_IF_ERROR(status);
  }
  TANDEM_RETURN_IF_ERROR(session_->segments().Unmap(suspended_segments_));
  if (const auto group = client_group()) TANDEM_RETURN_IF_ERROR(group->queue().Vacate());
  return session_->control().Suspend(id(), SuspendStep::kUnmapped, 0, TimeLeft(end)).status();
}
TANDEM_CATCH_TO_STATUS

Status GroupHandle::TakeMemory(ClientGroup* group, const SuspensionInfo& info) {
  TANDEM_RETURN_IF_ERROR(session_->segments().Remap(info.segment_ids, info.segments));
  for (const auto& tensor : Tensors()) TANDEM_RETURN_IF_ERROR(tensor->RestoreContents());
  return group == nullptr ? Status::Ok() : group->queue().Restart(info.number);
}

Status GroupHandle::Resume(Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->EndCheckpoint(Bounded(deadline)));
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  std::lock_guard lock(suspension_mutex_);
  if (!state_->suspended()) return state_->Broken();
  const auto end = std::chrono::steady_clock::now() + Bounded(deadline);
  const std::shared_ptr<ClientGroup> group = client_group();
  // Before the engines make memory: where this rank lacks some, they need none.
  if (group != nullptr) TANDEM_RETURN_IF_ERROR(group->queue().Refill());
  SuspensionInfo info;
  while (true) {
    Result<SuspensionInfo> resuming =
        session_->control().Suspend(id(), SuspendStep::kResuming, 0, TimeLeft(end));
    if (!resuming.ok()) {
      if (group != nullptr) (void)group->queue().Vacate();
      return resuming.status();
    }
    info = *std::move(resuming);
    if (info.awake) break;
    TANDEM_RETURN_IF_ERROR(TakeMemory(group.get(), info));
    Result<SuspensionInfo> mapped = session_->control().Suspend(id(), SuspendStep::kMapped, 0, TimeLeft(end));
    if (mapped.ok()) {
      info = *std::move(mapped);
      break;
    }
    // A tandemd that was restarted meanwhile has the group sleep still: all ranks ask it for the memory again.
    const bool again = mapped.status().detail().reason == "WRONG_STEP";
    if (!again || std::chrono::steady_clock::now() >= end) return mapped.status();
  }
  for (const auto& tensor : Tensors()) tensor->DropContents();
  if (group != nullptr) group->EndRenewal(info.renewals);
  state_->Resume(info.generation);
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
