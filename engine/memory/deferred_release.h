// File: deferred_release.h
//
// `DeferredRelease`: a queue of dead memory that may be released only while no lane holds work, because
// releasing it may block behind every lane (registered host memory, memory opened by IPC handle).
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>

#include "kernels/backend.h"

namespace tandem::engine {

class DeferredRelease {
 public:
  // More than this waiting means that the lanes never stand still: whoever would add to it in the end is to
  // be refused.
  static constexpr size_t kCrowded = 1024;

  // Lets go of one thing. The backend is null when it is gone already, and its registrations with it.
  using Release = std::function<void(Backend*)>;

  ~DeferredRelease() { RunAll(nullptr); }
  void Add(Release release) { waiting_.push_back(std::move(release)); }
  bool empty() const { return waiting_.empty(); }
  bool crowded() const { return waiting_.size() >= kCrowded; }

  // Lets go of the oldest. Only while no lane holds work.
  void RunOne(Backend* backend) {
    if (waiting_.empty()) return;
    Release release = std::move(waiting_.front());
    waiting_.pop_front();
    release(backend);
  }
  void RunAll(Backend* backend) {
    while (!waiting_.empty()) RunOne(backend);
  }

 private:
  std::deque<Release> waiting_;
};

}  // namespace tandem::engine
