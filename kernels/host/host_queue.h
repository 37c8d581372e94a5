// File: host_queue.h
//
// Hardware queues of the host backend. A queue is a thread that runs tasks in the order in which they were
// submitted. Lanes and client streams alias onto a set of N queues, as streams do on a GPU. Two streams that
// share a queue block each other here as they would there.
//
// Thread rule: all public functions may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/host/random_delay.h"
#include "kernels/host/task.h"
#include "tandem/status.h"

namespace tandem::host {

inline constexpr int kMaxHostQueues = 32;

// One in-order queue. Its thread sleeps on a condition variable while there is no work.
class HostQueue {
 public:
  // `delay`: null, or the source of the visibility-delay mode.
  explicit HostQueue(std::unique_ptr<RandomDelay> delay);
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  // Shuts down.
  ~HostQueue();

  // Appends `task` and returns its ticket. After Shutdown the task is dropped and counts as completed.
  uint64_t Submit(Task task);
  // Appends a store of `value` with release order. On an idle queue it is done before the call returns:
  // nothing precedes it, so no thread needs to wake for it.
  uint64_t SubmitWrite(std::atomic<uint64_t>* word, uint64_t value);
  // Appends a wait until *word has reached `value`. `keep_alive` is held until the wait is over and may be
  // null.
  uint64_t SubmitWait(const std::atomic<uint64_t>* word, uint64_t value,
                      std::shared_ptr<void> keep_alive = nullptr);
  // Appends `task`, which must be short and must not block; on an idle queue it runs before the call returns.
  uint64_t SubmitShort(Task task);

  // True when the task of this ticket and all before it have run (acquire order).
  bool Completed(uint64_t ticket) const { return completed_.load(std::memory_order_seq_cst) >= ticket; }
  // Waits for that; false if `deadline` came first.
  bool WaitCompleted(uint64_t ticket, std::chrono::steady_clock::time_point deadline);

  // Ends the queue whatever it is blocked on: waits of running tasks return, tasks not begun are dropped, the
  // thread is joined. Only for the end of a process or a test; idempotent. Must not be called from a task.
  void Shutdown();

 private:
  void Run();
  // Runs one task now if the queue is idle; false if it is not. Holds `mutex_`.
  bool CanRunInline() const { return !running_ && pending_.empty() && delay_ == nullptr; }
  void Publish(uint64_t ticket);

  std::unique_ptr<RandomDelay> delay_;
  std::atomic<bool> abandoned_{false};
  TaskContext context_;

  std::mutex mutex_;
  std::condition_variable work_available_;
  std::vector<Task> pending_;
  bool running_ = false;   // the thread has tasks in hand
  bool sleeping_ = false;  // the thread waits on `work_available_`
  bool stopped_ = false;
  uint64_t submitted_ = 0;
  std::atomic<bool> has_pending_{false};

  std::atomic<uint64_t> completed_{0};
  std::atomic<int> completion_waiters_{0};
  std::mutex completion_mutex_;
  std::condition_variable completion_;

  std::mutex shutdown_mutex_;
  std::thread thread_;  // last: it uses everything above
};

// N queues, and who gets which.
class HostQueueSet {
 public:
  // INVALID_ARGUMENT unless 1 <= count <= kMaxHostQueues and visibility_delay_us is not negative.
  static Result<std::shared_ptr<HostQueueSet>> Create(int count, int visibility_delay_us = 0,
                                                      uint64_t seed = 0);

  // The queue for a new lane. Ordinary lanes go round-robin from the first queue up, lanes of priority 0 from
  // the last one down, so that urgent lanes share a queue with ordinary ones as late as possible.
  HostQueue* Next(int priority);
  int size() const { return static_cast<int>(queues_.size()); }
  // HostQueue::Shutdown for all: first all waits end, then all threads are joined.
  void Shutdown();

 private:
  std::vector<std::unique_ptr<HostQueue>> queues_;
  std::atomic<uint64_t> next_ordinary_{0};
  std::atomic<uint64_t> next_urgent_{0};
};

}  // namespace tandem::host
