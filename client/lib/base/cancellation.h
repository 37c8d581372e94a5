// File: cancellation.h
//
// `Cancellation`: ends a thread's calls that wait for other ranks, from another thread. The core and the gRPC
// plugin share it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "tandem/status.h"

namespace tandem::client {

// Thread-safe. It ends at most one call at a time: that of the thread which has it in use.
class Cancellation {
 public:
  // Ends the call under way, and each later one as it begins.
  void Cancel() {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (end_) end_();
  }

 private:
  friend class CancelScope;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::function<void()> end_;  // of the call under way; must not wait
};

// One call that can be cancelled.
class CancelScope {
 public:
  // `cancellation`: null: the call cannot be cancelled. `end` ends it, and is called by any thread.
  CancelScope(std::shared_ptr<Cancellation> cancellation, std::function<void()> end)
      : cancellation_(std::move(cancellation)) {
    if (cancellation_ == nullptr) return;
    std::lock_guard lock(cancellation_->mutex_);
    if (cancellation_->cancelled_) end();
    cancellation_->end_ = std::move(end);
  }
  ~CancelScope() {
    if (cancellation_ == nullptr) return;
    std::lock_guard lock(cancellation_->mutex_);
    cancellation_->end_ = nullptr;
  }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

  bool Cancelled() const {
    if (cancellation_ == nullptr) return false;
    std::lock_guard lock(cancellation_->mutex_);
    return cancellation_->cancelled_;
  }

 private:
  const std::shared_ptr<Cancellation> cancellation_;
};

// CANCELLED where this thread's calls have been cancelled; for calls that poll.
Status CheckCancelled();

// That of this thread's calls; null: none. Defined in the core alone.
std::shared_ptr<Cancellation>& ThisThreadsCancellation();

}  // namespace tandem::client
