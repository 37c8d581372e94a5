// File: works.h
//
// c10d::Work for collectives that Tandem runs, and the threads that run those of CPU tensors.
#pragma once

#include <c10/core/Event.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace tandem::torch_distributed {

// A collective that has been enqueued on a stream. wait() makes the caller's current stream wait for it, as
// ProcessGroupNCCL's does; it does not block the CPU.
class StreamWork final : public ::c10d::Work {
 public:
  // side: the stream of an asynchronous call, at whose end the event is recorded; nothing: the caller's
  // current stream has it in its order already.
  StreamWork(int rank, ::c10d::OpType type, std::vector<at::Tensor> outputs, std::optional<c10::Stream> side);

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<at::Tensor> outputs_;
  const std::optional<c10::Stream> side_;
  c10::Event ended_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A collective of CPU tensors. Ends where a WorkQueue has run it.
class HostWork final : public ::c10d::Work {
 public:
  HostWork(int rank, ::c10d::OpType type, std::vector<at::Tensor> outputs);

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  // Runs the work and keeps its failure.
  void Run(const std::function<void()>& work);

 private:
  std::vector<at::Tensor> outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Runs one group's collectives of CPU tensors in the order of their calls: on the caller's thread where none is
// under way and the call waits anyway, else on a thread of the queue. Thread-safe.
class WorkQueue {
 public:
  WorkQueue();
  // The queue's thread ends behind what has been enqueued. Waits for nothing.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void Run(const c10::intrusive_ptr<HostWork>& work, std::function<void()> function, bool async);

 private:
  struct Entry {
    c10::intrusive_ptr<HostWork> work;
    std::function<void()> function;
  };
  // The thread has it too, and may outlive the queue.
  struct Entries {
    std::mutex mutex;
    std::condition_variable wakes;
    std::deque<Entry> waiting;  // the first one is under way
    bool has_thread = false;
    bool closing = false;
  };
  static void Serve(const std::shared_ptr<Entries>& entries);

  const std::shared_ptr<Entries> entries_;
  const int process_;  // a forked child has no thread, and the lock may be another thread's
};

}  // namespace tandem::torch_distributed
