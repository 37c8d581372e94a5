// File: host_calls.h
//
// `HostCalls`: the calls of one group on the host backend. XLA's CPU client runs calls that do not depend on each
// other in any order, which differs from rank to rank. The group's rank 0 chooses the next call, and broadcasts
// its name. Operands are copied to and from registered memory. Knows nothing of XLA.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/jax/jax_calls.h"

namespace tandem::jax_calls {

// Code 0 (TANDEM_OK): none.
struct CallFailure {
  int code = TANDEM_OK;
  std::string text = {};
};

// Takes a status of the C API over.
CallFailure TakeFailure(const tandem_jax_functions& library, tandem_status* status);

// A call's name, equal on all ranks. Calls with one name come in one order.
struct CallName {
  int64_t plan = 0;  // in the table of plans
  int64_t site = 0;  // among the places of compiled programs with that plan and number of rows
  bool operator==(const CallName&) const = default;
};
static_assert(sizeof(CallName) == TANDEM_JAX_ORDER_BYTES);

struct HostSlot {
  void* data = nullptr;
  size_t bytes = 0;
  bool written = false;
};

struct HostCall {
  CallName name;
  tandem_plan* plan = nullptr;
  int64_t rows = -1;
  std::vector<HostSlot> slots;
  // Called once, from any thread. The slots' memory is the call's until then.
  std::function<void(const CallFailure&)> done;
};

// Thread-safe.
class HostCalls {
 public:
  HostCalls(const tandem_jax_functions& library, const tandem_jax_host_group& group);
  // Calls that wait fail with CANCELLED.
  ~HostCalls();
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Does not wait for the call. After a failure all calls fail.
  void Add(HostCall call);

 private:
  void Run();
  // Waits for a call, and returns its name; false where this ends.
  bool WaitForCall(CallName* first);
  // Rank 0's choice. `own` is this rank's.
  CallFailure Choose(const CallName& own, CallName* chosen);
  // Waits until this rank has the call.
  CallFailure Take(const CallName& name, HostCall* call);
  CallFailure Launch(const HostCall& call);
  // Launches and waits for the end.
  CallFailure LaunchToEnd(tandem_plan* plan, int64_t rows, const std::vector<tandem_binding>& bindings);
  CallFailure Reserve(size_t bytes);
  void FailAll(const CallFailure& failure);

  const tandem_jax_functions library_;
  tandem_client* const client_;
  const std::string gpu_;
  const int rank_;
  tandem_plan* const order_;
  const int64_t deadline_ms_;

  // The thread alone uses these.
  tandem_stream* stream_ = nullptr;
  tandem_memory* staging_ = nullptr;
  size_t staging_bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostCall> pending_;  // in the order in which they came
  CallFailure failure_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tandem::jax_calls
