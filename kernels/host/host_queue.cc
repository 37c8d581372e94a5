#include "kernels/host/host_queue.h"

#include <sched.h>

#include <utility>

#include "common/exceptions.h"
#include "kernels/host/word_wait.h"

namespace tandem::host {
namespace {

// How long an empty queue looks for more work before it sleeps. Launches come in bursts, and waking a thread
// costs the submitter more than this.
constexpr std::chrono::microseconds kLingerFor{4};

}  // namespace

HostQueue::HostQueue(std::unique_ptr<RandomDelay> delay) : delay_(std::move(delay)) {
  context_.abandoned = &abandoned_;
  context_.delay = delay_.get();
  thread_ = std::thread([this] { Run(); });
}

HostQueue::~HostQueue() { Shutdown(); }

uint64_t HostQueue::Submit(Task task) {
  bool wake = false;
  uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return submitted_;
    pending_.push_back(std::move(task));
    ticket = ++submitted_;
    has_pending_.store(true, std::memory_order_relaxed);
    wake = sleeping_;
  }
  if (wake) work_available_.notify_one();
  return ticket;
}

uint64_t HostQueue::SubmitShort(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return submitted_;
    if (CanRunInline()) {
      task(context_);
      uint64_t ticket = ++submitted_;
      completed_.store(ticket, std::memory_order_seq_cst);
      return ticket;
    }
  }
  return Submit(std::move(task));
}

uint64_t HostQueue::SubmitWrite(std::atomic<uint64_t>* word, uint64_t value) {
  return SubmitShort([word, value](const TaskContext&) { word->store(value, std::memory_order_release); });
}

uint64_t HostQueue::SubmitWait(const std::atomic<uint64_t>* word, uint64_t value,
                               std::shared_ptr<void> keep_alive) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return submitted_;
    // The load is the wait itself: later tasks of the queue run after this lock is released, and so after it.
    if (CanRunInline() && Reached(word->load(std::memory_order_acquire), value)) {
      uint64_t ticket = ++submitted_;
      completed_.store(ticket, std::memory_order_seq_cst);
      return ticket;
    }
  }
  return Submit([word, value, keep = std::move(keep_alive)](const TaskContext& context) {
    WaitUntilReached(*word, value, *context.abandoned);
  });
}

bool HostQueue::WaitCompleted(uint64_t ticket, std::chrono::steady_clock::time_point deadline) {
  for (int i = 0; i < 20; ++i) {
    if (Completed(ticket)) return true;
    sched_yield();
  }
  completion_waiters_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(completion_mutex_);
  bool completed = completion_.wait_until(lock, deadline, [&] { return Completed(ticket); });
  completion_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return completed;
}

void HostQueue::Publish(uint64_t ticket) {
  completed_.store(ticket, std::memory_order_seq_cst);
  // A waiter raises its count before it reads `completed_`; one of the two sees the other.
  if (completion_waiters_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(completion_mutex_);
    completion_.notify_all();
  }
}

void HostQueue::Run() {
  UsePreciseSleeps();
  std::vector<Task> batch;
  uint64_t ticket = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      running_ = false;
      if (pending_.empty() && !stopped_) {
        lock.unlock();
        auto until = std::chrono::steady_clock::now() + kLingerFor;
        while (!has_pending_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < until)
          sched_yield();
        lock.lock();
      }
      sleeping_ = true;
      work_available_.wait(lock, [&] { return stopped_ || !pending_.empty(); });
      sleeping_ = false;
      if (stopped_) break;
      batch.swap(pending_);
      has_pending_.store(false, std::memory_order_relaxed);
      running_ = true;
      // Tickets of tasks that ran inline lie between the batches.
      ticket = submitted_ - batch.size();
    }
    for (Task& task : batch) {
      if (abandoned_.load(std::memory_order_relaxed)) break;
      if (delay_ != nullptr) delay_->Pause();
      {
        // Destroyed before it counts as completed: what it holds is free once its stream is synchronized.
        Task current = std::move(task);
        current(context_);
      }
      Publish(++ticket);
    }
    batch.clear();
  }
  // Nobody may wait for dropped tasks for ever.
  Publish(submitted_);
}

void HostQueue::Shutdown() {
  abandoned_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_available_.notify_all();
  std::lock_guard lock(shutdown_mutex_);
  if (thread_.joinable()) thread_.join();
  std::vector<Task> dropped;
  {
    std::lock_guard queue_lock(mutex_);
    dropped.swap(pending_);
  }
}

Result<std::shared_ptr<HostQueueSet>> HostQueueSet::Create(int count, int visibility_delay_us,
                                                           uint64_t seed) try {
  if (count < 1 || count > kMaxHostQueues) {
    return InvalidArgument("hardware queues: " + std::to_string(count) + " is not in 1.." +
                           std::to_string(kMaxHostQueues));
  }
  if (visibility_delay_us < 0) return InvalidArgument("a negative visibility delay");
  auto set = std::make_shared<HostQueueSet>();
  for (int i = 0; i < count; ++i) {
    std::unique_ptr<RandomDelay> delay;
    if (visibility_delay_us > 0) {
      delay = std::make_unique<RandomDelay>(visibility_delay_us,
                                            seed * kMaxHostQueues + static_cast<uint64_t>(i));
    }
    try {
      set->queues_.push_back(std::make_unique<HostQueue>(std::move(delay)));
    } catch (const std::system_error& error) {
      return NoThread("a host queue", error.code().message());
    }
  }
  return set;
}
TANDEM_CATCH_TO_STATUS

HostQueue* HostQueueSet::Next(int priority) {
  uint64_t count = queues_.size();
  if (priority == 0)
    return queues_[count - 1 - next_urgent_.fetch_add(1, std::memory_order_relaxed) % count].get();
  return queues_[next_ordinary_.fetch_add(1, std::memory_order_relaxed) % count].get();
}

void HostQueueSet::Shutdown() {
  // Each queue's Shutdown ends its own waits at once; a task waits only for words, never for another queue's
  // thread.
  for (auto& queue : queues_) queue->Shutdown();
}

}  // namespace tandem::host
