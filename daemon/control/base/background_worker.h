// File: background_worker.h
//
// `BackgroundWorker`: one thread that runs the control plane's slow tasks in order (installing groups again
// after an engine's restart), so that no listener or handler waits for engines that are not its own concern.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "common/mutex.h"

namespace tandem::daemon {

class BackgroundWorker {
 public:
  BackgroundWorker() : thread_([this] { Run(); }) {}
  // Finishes the running task; drops the others.
  ~BackgroundWorker() { End(); }
  // The same ahead of the destructor; tasks that are posted later are dropped.
  void End() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  // Any thread; never blocks.
  void Post(std::function<void()> task) {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(lock.fused(), [this]() TANDEM_REQUIRES(mutex_) { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.Unlock();
      task();
      task = nullptr;
      lock.Lock();
    }
  }

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_ TANDEM_GUARDED_BY(mutex_);
  bool stopping_ TANDEM_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::daemon
