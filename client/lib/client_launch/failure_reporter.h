// File: failure_reporter.h
//
// `FailureReporter`: reports failed client-placed launches to tandemd, from a separate thread. A
// stream's thread must not wait for an answer. The same thread polls launches that end without a call of the
// library's, as kernels do, and reports their number each second.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "client/lib/base/control_api.h"

namespace tandem::client {

class ClientGroup;

// Thread-safe. A forked child must not destroy it: its thread is not there.
class FailureReporter {
 public:
  // `control` outlives Stop().
  explicit FailureReporter(ClientControl* control) : control_(control) {}
  // Starts the thread, once; RESOURCE_EXHAUSTED where none can be made.
  Status Start();
  ~FailureReporter();
  FailureReporter(const FailureReporter&) = delete;
  FailureReporter& operator=(const FailureReporter&) = delete;

  // Returns at once. Dropped after Stop.
  void Post(FailureReport report);
  // Polls the group's launches from now on, at the interval that its queue asks for.
  void Watch(const std::shared_ptr<ClientGroup>& group);
  // Ends the thread, after the report that it is sending.
  void Stop();

 private:
  void Run();
  void RunUntilStopped();
  void PollGroups();

  ClientControl* const control_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FailureReport> reports_;
  std::vector<std::weak_ptr<ClientGroup>> watched_;
  std::chrono::milliseconds poll_interval_{0};         // 0: nothing is watched
  std::chrono::steady_clock::time_point progress_at_;  // of the thread's
  bool stopping_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace tandem::client
