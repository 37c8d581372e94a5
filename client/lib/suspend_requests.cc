#include "client/lib/suspend_requests.h"

#include <chrono>
#include <utility>

#include "client/lib/base/log_hook.h"
#include "common/exceptions.h"

namespace tandem::client {

bool SuspendRequests::BeginStep(int64_t step) {
  std::unique_lock lock(mutex_);
  step_ = step < 0 ? step_ + 1 : static_cast<uint64_t>(step);
  if (!offered_ && !stopping_) {
    Status offered = Status::Ok();
    if (!thread_.joinable()) {
      Result<std::thread> started = StartThread("requests to suspend", [this] { Run(); });
      offered = started.status();
      if (started.ok()) thread_ = *std::move(started);
    }
    lock.unlock();
    if (offered.ok()) offered = control_->ServeSuspension(ServePhase::kOffer, 0, 0).status();
    lock.lock();
    // An older daemon has no such requests.
    offered_ = offered.ok() || offered.code() == Code::kUnimplemented;
    if (!offered.ok()) {
      LogLine(ClientLogLevel::kWarning,
              [&] { return "operators cannot suspend this job: " + offered.ToString(); });
    }
  }
  if (phase_ == Phase::kAgreed) return step_ >= target_;
  return phase_ != Phase::kIdle;
}

Result<bool> SuspendRequests::Handshake() {
  bool cancelled = false;
  const CancelScope scope(ThisThreadsCancellation(), [&] {
    std::lock_guard lock(mutex_);
    cancelled = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ != Phase::kAgreeing || stopping_ || cancelled; });
  if (cancelled) return Status(Code::kCancelled, "the call was cancelled");
  if (phase_ == Phase::kAsleep) return true;
  if (phase_ != Phase::kAgreed || step_ < target_ || stopping_) return false;
  const uint64_t request = request_;
  lock.unlock();
  return Arrive(request);
}

Result<bool> SuspendRequests::Arrive(uint64_t request) {
  const Status arrived = control_->ServeSuspension(ServePhase::kArrived, request, 0).status();
  std::lock_guard lock(mutex_);
  if (request_ == request) phase_ = arrived.ok() ? Phase::kAsleep : Phase::kIdle;
  changed_.notify_all();
  if (arrived.code() == Code::kCancelled) return arrived;
  if (!arrived.ok())
    LogLine(ClientLogLevel::kInfo, [&] { return "the job is not suspended: " + arrived.ToString(); });
  return arrived.ok();
}

Status SuspendRequests::AwaitResume(const std::function<Status()>& over) {
  bool cancelled = false;
  const CancelScope scope(ThisThreadsCancellation(), [&] {
    std::lock_guard lock(mutex_);
    cancelled = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  while (true) {
    if (std::exchange(resumes_, false)) return Status::Ok();
    if (cancelled) return Status(Code::kCancelled, "the call was cancelled; the groups sleep on");
    TANDEM_RETURN_IF_ERROR(over());
    changed_.wait(lock);
  }
}

void SuspendRequests::Settle() {
  std::lock_guard lock(mutex_);
  phase_ = Phase::kIdle;
  changed_.notify_all();
}

void SuspendRequests::Handle(const ControlEvent& event) {
  std::lock_guard lock(mutex_);
  if (event.event.kind == ClientEvent::Kind::kSuspendRequested) {
    asked_ = true;
    request_ = event.request;
    // tandemd has one request at a time: the one before is over. Groups that sleep wake up first.
    if (phase_ != Phase::kAsleep) {
      phase_ = Phase::kIdle;
      resumes_ = false;
    }
  } else if (event.event.kind == ClientEvent::Kind::kResumeRequested) {
    resumes_ = phase_ == Phase::kAgreed || phase_ == Phase::kAsleep;
  }
  changed_.notify_all();
}

void SuspendRequests::Wake() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void SuspendRequests::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  cancellation_->Cancel();
  if (thread_.joinable()) thread_.join();
}

void SuspendRequests::Run() {
  ThisThreadsCancellation() = cancellation_;
  while (true) {
    try {
      return RunUntilStopped();
    } catch (...) {  // without memory for now
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, std::chrono::milliseconds(50), [this] { return stopping_; })) return;
    }
  }
}

void SuspendRequests::RunUntilStopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || (asked_ && phase_ == Phase::kIdle); });
    if (stopping_) return;
    asked_ = false;
    resumes_ = false;
    phase_ = Phase::kAgreeing;
    const uint64_t request = request_, step = step_;
    lock.unlock();
    const Result<uint64_t> target = control_->ServeSuspension(ServePhase::kAgree, request, step);
    lock.lock();
    if (request_ != request) continue;  // a later request has taken its place
    if (target.ok()) target_ = *target;
    phase_ = target.ok() ? Phase::kAgreed : Phase::kIdle;
    changed_.notify_all();
  }
}

}  // namespace tandem::client
