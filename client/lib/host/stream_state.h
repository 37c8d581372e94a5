// File: stream_state.h
//
// The state of HostStream, HostEvent and HostGraph. Internal to the host stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/host/host_queue.h"
#include "tandem/status.h"

namespace tandem::host {

// The process's queues: made at the first use with the number in force then. They live until the process
// ends.
Result<HostQueueSet*> ProcessQueues();

struct EventState;

// One recorded operation. A branch is one stream's part of a capture; branch 0 is the stream that began it.
struct GraphNode {
  enum class Kind { kFunction, kWriteWord, kWaitWord, kRecord, kWait, kRecordExternal, kWaitExternal };
  Kind kind = Kind::kFunction;
  int branch = 0;
  std::function<void()> function;
  std::atomic<uint64_t>* word = nullptr;
  const std::atomic<uint64_t>* watched = nullptr;
  uint64_t value = 0;
  int record = 0;                     // kRecord, kWait: which record of this graph
  std::shared_ptr<EventState> event;  // kRecordExternal, kWaitExternal
};

// A captured graph; not changed once an executable graph holds it, but for `user_objects` of the HostGraph's
// own copy.
struct GraphState {
  std::shared_ptr<const std::vector<GraphNode>> nodes;
  int branches = 1;
  int records = 0;
  std::vector<std::shared_ptr<void>> user_objects;
};

// An executable graph. Its tasks in flight hold it by shared_ptr.
struct GraphExecState {
  std::shared_ptr<const std::vector<GraphNode>> nodes;
  std::vector<std::shared_ptr<void>> user_objects;
  std::vector<HostQueue*> branch_queues;       // of branch 1 and up; index 0 is not used
  std::vector<std::atomic<uint64_t>> records;  // word of each record: the launch that reached it last
  std::atomic<uint64_t> finished{0};           // launches that have ended
  std::mutex mutex;
  uint64_t launches = 0;  // guarded by `mutex`

  explicit GraphExecState(size_t record_count) : records(record_count) {}
};

// A capture in progress. How far each branch is ordered behind the others is kept as a vector clock, so that
// work that was never joined back is found at the end.
struct CaptureState {
  using Clock = std::vector<uint64_t>;

  std::mutex mutex;
  bool ended = false;
  std::vector<GraphNode> nodes;
  std::vector<Clock> clocks;   // by branch
  std::vector<uint64_t> work;  // by branch: the clock at the last piece of work
  std::vector<Clock> records;  // by record: the clock of its branch then
  std::vector<std::shared_ptr<void>> user_objects;
};

struct EventState {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> reached{0};
  std::atomic<int64_t> time_ns{0};
  std::mutex mutex;
  std::shared_ptr<CaptureState> capture;  // the capture that the latest record belongs to; guarded by `mutex`
  int capture_record = 0;
};

struct StreamState {
  mutable std::mutex mutex;
  uint64_t id = 0;  // fixed before anybody else sees the state
  HostQueue* queue = nullptr;
  uint64_t last_ticket = 0;
  std::shared_ptr<CaptureState> capture;  // null: not capturing
  int branch = 0;

  // The capture under way, or null; forgets a capture that its origin has ended. Holds `mutex`.
  CaptureState* ActiveCapture();
};

}  // namespace tandem::host
