#include "client/torch/distributed/works.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

namespace tandem::torch_distributed {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> NewFuture(std::vector<c10::Device> devices = {}) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                  std::move(devices));
}

c10::Stream CurrentStream(const at::Tensor& tensor) {
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

}  // namespace

StreamWork::StreamWork(int rank, ::c10d::OpType type, std::vector<at::Tensor> outputs,
                       std::optional<c10::Stream> side)
    : Work(rank, type), outputs_(std::move(outputs)), side_(side), ended_(outputs_.front().device().type()) {
  if (side_) ended_.record(*side_);
}

bool StreamWork::isCompleted() { return side_ ? ended_.query() : CurrentStream(outputs_.front()).query(); }

bool StreamWork::wait(std::chrono::milliseconds) {
  synchronize();
  return true;
}

void StreamWork::synchronize() {
  if (side_) ended_.block(CurrentStream(outputs_.front()));
}

c10::intrusive_ptr<c10::ivalue::Future> StreamWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (future_ == nullptr) {
    // The future records an event of its own, on the stream that is current when it is marked.
    std::optional<c10::StreamGuard> guard;
    if (side_) guard.emplace(*side_);
    future_ = NewFuture({outputs_.front().device()});
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

HostWork::HostWork(int rank, ::c10d::OpType type, std::vector<at::Tensor> outputs)
    : Work(rank, type), outputs_(std::move(outputs)), future_(NewFuture()) {}

void HostWork::Run(const std::function<void()>& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure == nullptr) {
    future_->markCompleted(c10::IValue(outputs_));
  } else {
    future_->setError(failure);
  }
  finish(failure);
}

void WorkQueue::Run(const c10::intrusive_ptr<HostWork>& work, std::function<void()> function, bool async) {
  {
    std::unique_lock lock(mutex_);
    if (async || !entries_.empty()) {
      entries_.push_back({work, std::move(function)});
      if (!has_thread_) std::thread([this] { Serve(); }).detach();
      has_thread_ = true;
      wakes_.notify_all();
      lock.unlock();
      if (!async) work->wait(kNoTimeout);
      return;
    }
  }
  work->Run(function);
  work->wait(kNoTimeout);  // raises what has failed
}

// The thread lives as long as the process: the queue is never destroyed.
void WorkQueue::Serve() {
  while (true) {
    Entry entry;
    {
      std::unique_lock lock(mutex_);
      wakes_.wait(lock, [this] { return !entries_.empty(); });
      entry = entries_.front();
    }
    entry.work->Run(entry.function);
    const std::lock_guard lock(mutex_);
    entries_.pop_front();
  }
}

}  // namespace tandem::torch_distributed
