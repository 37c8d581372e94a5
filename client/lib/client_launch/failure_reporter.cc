#include "client/lib/client_launch/failure_reporter.h"

#include <algorithm>
#include <utility>

#include "client/lib/client_launch/client_group.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

constexpr std::chrono::seconds kProgressInterval{1};

}  // namespace

Status FailureReporter::Start() {
  TANDEM_ASSIGN_OR_RETURN(thread_, StartThread("reports of failures", [this] { Run(); }));
  return Status::Ok();
}

FailureReporter::~FailureReporter() { Stop(); }

void FailureReporter::Post(FailureReport report) {
  {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
  }
  changed_.notify_all();
}

void FailureReporter::Watch(const std::shared_ptr<ClientGroup>& group) {
  {
    std::lock_guard lock(mutex_);
    watched_.push_back(group);
    const std::chrono::milliseconds interval = group->queue().PollInterval();
    poll_interval_ = poll_interval_.count() == 0 ? interval : std::min(poll_interval_, interval);
  }
  changed_.notify_all();
}

void FailureReporter::PollGroups() {
  std::vector<std::shared_ptr<ClientGroup>> groups;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(watched_, [](const auto& known) { return known.expired(); });
    if (watched_.empty()) poll_interval_ = std::chrono::milliseconds(0);
    for (const auto& known : watched_) {
      if (auto group = known.lock()) groups.push_back(std::move(group));
    }
  }
  for (const auto& group : groups) group->queue().PollFailures();
  const auto now = std::chrono::steady_clock::now();
  if (now - progress_at_ < kProgressInterval) return;
  progress_at_ = now;
  for (const auto& group : groups) group->queue().ReportProgress();
}

void FailureReporter::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FailureReporter::Run() {
  while (true) {
    try {
      return RunUntilStopped();
    } catch (...) {  // without memory for now
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return stopping_; })) return;
    }
  }
}

void FailureReporter::RunUntilStopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto due = [&] { return stopping_ || !reports_.empty(); };
    if (poll_interval_.count() == 0) {
      changed_.wait(lock, [&] { return due() || poll_interval_.count() > 0; });
    } else {
      changed_.wait_for(lock, poll_interval_, due);
    }
    if (stopping_) return;
    if (reports_.empty()) {
      lock.unlock();
      PollGroups();
      lock.lock();
      continue;
    }
    const FailureReport report = std::move(reports_.front());
    reports_.pop_front();
    lock.unlock();
    // A failure to report is the daemon's end: then the session's watchdog ends the launches.
    (void)control_->ReportFailure(report);
    lock.lock();
  }
}

}  // namespace tandem::client
