#include "client/lib/placed/failure_reporter.h"

#include <utility>

namespace tandem::client {

FailureReporter::FailureReporter(ClientControl* control) : control_(control), thread_([this] { Run(); }) {}

FailureReporter::~FailureReporter() { Stop(); }

void FailureReporter::Post(FailureReport report) {
  {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(report));
  }
  changed_.notify_all();
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
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !reports_.empty(); });
    if (stopping_) return;
    const FailureReport report = std::move(reports_.front());
    reports_.pop_front();
    lock.unlock();
    // A failure to report is the daemon's end: then the session's watchdog ends the launches.
    (void)control_->ReportFailure(report);
    lock.lock();
  }
}

}  // namespace tandem::client
