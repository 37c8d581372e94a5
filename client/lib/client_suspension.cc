// Client: the answer to operators' requests to suspend.
#include <algorithm>
#include <utility>
#include <vector>

#include "client/lib/base/log_hook.h"
#include "client/lib/handles.h"
#include "client/lib/suspend_requests.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem::client {

void ClientHandle::AddGroup(const std::shared_ptr<GroupHandle>& group) {
  std::lock_guard lock(groups_mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

// In the order of their ids: all sessions of a job suspend the groups that they share in one order.
std::vector<std::shared_ptr<GroupHandle>> ClientHandle::LiveGroups() {
  std::vector<std::shared_ptr<GroupHandle>> groups;
  std::lock_guard lock(groups_mutex_);
  for (const auto& known : groups_) {
    std::shared_ptr<GroupHandle> group = known.lock();
    if (group != nullptr && !group->left() && group->state()->Ended().ok())
      groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return groups;
}

Status ClientHandle::BeginCheckpoint(Milliseconds deadline) try {
  return session_->BeginCheckpoint(Bounded(deadline));
}
TANDEM_CATCH_TO_STATUS

Status ClientHandle::EndCheckpoint(Milliseconds deadline) try {
  return session_->EndCheckpoint(Bounded(deadline));
}
TANDEM_CATCH_TO_STATUS

bool ClientHandle::IsAskedToSuspend(int64_t step) try {
  return session_->CheckLaunchable().ok() && session_->suspend_requests().BeginStep(step);
} catch (...) {  // without memory: the request waits for the next step
  return false;
}

Result<bool> ClientHandle::SuspendAsAsked(bool keep) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  SuspendRequests& requests = session_->suspend_requests();
  TANDEM_ASSIGN_OR_RETURN(const bool met, requests.Handshake());
  if (!met) return false;
  std::vector<std::shared_ptr<GroupHandle>> groups = LiveGroups();
  for (const auto& group : groups) {
    const Status status = group->Suspend(keep, kDefaultDeadline);
    if (status.code() == Code::kCancelled) return status;
    if (!status.ok()) {
      LogLine(ClientLogLevel::kWarning,
              [&] { return "group '" + group->name() + "' does not sleep: " + status.ToString(); });
    }
  }
  // An operator's request ends no program: what has not gone to sleep goes on.
  std::erase_if(groups, [](const auto& group) { return !group->state()->suspended(); });
  if (groups.empty()) {
    requests.Settle();
    return false;
  }
  const auto over = [&]() -> Status {
    TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
    for (const auto& group : groups) TANDEM_RETURN_IF_ERROR(group->state()->Ended());
    return Status::Ok();
  };
  while (true) {
    Status status = requests.AwaitResume(over);
    if (status.code() == Code::kCancelled) return status;
    for (const auto& group : groups) {
      if (status.ok()) status = group->Resume(kDefaultDeadline);
    }
    if (status.code() == Code::kCancelled) return status;
    const Status end = over();
    if (status.ok() || !end.ok()) {
      requests.Settle();
      if (!end.ok()) return end;
      return true;
    }
    LogLine(ClientLogLevel::kWarning, [&] { return "the job sleeps on: " + status.ToString(); });
  }
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
