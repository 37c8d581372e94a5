// File: suspend_requests.h
//
// `SuspendRequests`: operators' requests to suspend a session's groups, between two steps of its program
// (docs/suspend.md). Sessions of a job agree on the step while their programs run on. So none of them
// stops in a step that the others have begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "client/lib/base/control_api.h"
#include "tandem/status.h"

namespace tandem::client {

// Thread-safe; one thread makes the steps. A forked child must not destroy it: its thread is not there.
class SuspendRequests {
 public:
  // `control` outlives Stop().
  explicit SuspendRequests(ClientControl* control) : control_(control) {}
  ~SuspendRequests() { Stop(); }
  SuspendRequests(const SuspendRequests&) = delete;
  SuspendRequests& operator=(const SuspendRequests&) = delete;

  // The program begins step `step`, or for -1 the one behind the last. True: Handshake() comes first. The
  // first call offers tandemd to take requests.
  bool BeginStep(int64_t step);
  // Waits for the other sessions where this is the step to suspend at. False: it is not, or nobody asks any
  // more. CANCELLED.
  Result<bool> Handshake();
  // Behind Handshake, once the groups sleep: returns when an operator lets the job go on, or with the failure
  // of `over`. `over` is called with the lock held. CANCELLED: the groups sleep on, and the next BeginStep is
  // true.
  Status AwaitResume(const std::function<Status()>& over);
  // The groups are awake, or over: requests are taken again.
  void Settle();

  // Requests of tandemd. Any other event may be what `over` waits for.
  void Handle(const ControlEvent& event);
  // `over` may have another answer.
  void Wake();
  // Ends the thread. The session is over.
  void Stop();

 private:
  enum class Phase : uint8_t {
    kIdle,      // nobody asks, or the thread has not seen it
    kAgreeing,  // tandemd knows the last step, and names the one to suspend at
    kAgreed,    // on `target_`
    kAsleep,    // all sessions have come to it
  };
  // Waits for the other sessions at this step.
  Result<bool> Arrive(uint64_t request);
  void Run();
  void RunUntilStopped();

  ClientControl* const control_;
  const std::shared_ptr<Cancellation> cancellation_ = std::make_shared<Cancellation>();  // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kIdle;
  bool offered_ = false, asked_ = false, resumes_ = false, stopping_ = false;
  uint64_t request_ = 0, step_ = 0, target_ = 0;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace tandem::client
