// File: failure_reporter.h
//
// `FailureReporter`: reports failed client-placed launches to tandemd, from a separate thread. A
// stream's thread must not wait for an answer.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "client/lib/control_api.h"

namespace tandem::client {

// Thread-safe. A forked child must not destroy it: its thread is not there.
class FailureReporter {
 public:
  // `control` outlives Stop().
  explicit FailureReporter(ClientControl* control);
  ~FailureReporter();
  FailureReporter(const FailureReporter&) = delete;
  FailureReporter& operator=(const FailureReporter&) = delete;

  // Returns at once. Dropped after Stop.
  void Post(FailureReport report);
  // Ends the thread, after the report that it is sending.
  void Stop();

 private:
  void Run();

  ClientControl* const control_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FailureReport> reports_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace tandem::client
