// Client: suspending and resuming all groups, by itself and when an operator asks for it.
#include <algorithm>
#include <string>
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

// All sessions of a job suspend the groups that they share in one order, whatever others they have: so no two of them
// wait for each other.
ClientHandle::Groups ClientHandle::JoinedGroups() {
  Groups groups;
  std::lock_guard lock(groups_mutex_);
  for (const auto& known : groups_) {
    std::shared_ptr<GroupHandle> group = known.lock();
    if (group != nullptr && !group->left()) groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return groups;
}

ClientHandle::Groups ClientHandle::LiveGroups() {
  Groups groups = JoinedGroups();
  std::erase_if(groups, [](const auto& group) { return !group->state()->Ended().ok(); });
  return groups;
}

Status ClientHandle::Suspend(bool keep, Milliseconds given) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  const Milliseconds deadline = Bounded(given);
  const auto end = std::chrono::steady_clock::now() + deadline;
  Groups slept;
  for (const auto& group : JoinedGroups()) {
    const bool was_asleep = group->state()->suspended();
    const Status status = group->Suspend(keep, TimeLeft(end));
    if (!was_asleep && group->state()->suspended()) slept.push_back(group);
    if (status.ok()) continue;
    Status named = status.WithContext("group '" + group->name() + "' does not sleep");
    if (status.code() == Code::kCancelled) return named;
    // Ranks that wait for this one in a later group hear by their deadline that it does not come. They wake up, too.
    const Status woken = ResumeAll(slept, end + deadline);
    if (woken.ok()) return named;
    return Status(named.code(), named.message() + "; and " + woken.message(), named.detail());
  }
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Status ClientHandle::ResumeAll(const Groups& groups, std::chrono::steady_clock::time_point end) {
  Status first;
  std::string asleep;
  for (const auto& group : groups) {
    if (!group->state()->suspended()) continue;
    const Status status = group->Resume(TimeLeft(end));
    if (status.ok()) continue;
    asleep += (asleep.empty() ? "'" : ", '") + group->name() + "'";
    if (first.ok()) first = status.WithContext("group '" + group->name() + "' does not wake up");
    if (status.code() == Code::kCancelled) break;
  }
  if (first.ok()) return first;
  return Status(first.code(), first.message() + " (asleep: " + asleep + ")", first.detail());
}

Status ClientHandle::Resume(Milliseconds given) try {
  const auto end = std::chrono::steady_clock::now() + Bounded(given);
  TANDEM_RETURN_IF_ERROR(session_->EndCheckpoint(TimeLeft(end)));
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  return ResumeAll(JoinedGroups(), end);
}
TANDEM_CATCH_TO_STATUS

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
  Groups groups = LiveGroups();
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
