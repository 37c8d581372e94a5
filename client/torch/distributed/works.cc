#include "client/torch/distributed/works.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

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
    // A future records another event, on the stream that is current when it is marked.
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

WorkQueue::WorkQueue() : entries_(std::make_shared<Entries>()), process_(::getpid()) {}

WorkQueue::~WorkQueue() {
  if (process_ != ::getpid()) return;
  const std::lock_guard lock(entries_->mutex);
  entries_->closing = true;
  entries_->wakes.notify_all();
}

void WorkQueue::Run(const c10::intrusive_ptr<HostWork>& work, std::function<void()> function, bool async) {
  std::unique_lock lock(entries_->mutex);
  if (!async && entries_->waiting.empty()) {
    lock.unlock();
    work->Run(function);
  } else {
    entries_->waiting.push_back({work, std::move(function)});
    if (!entries_->has_thread) std::thread([entries = entries_] { Serve(entries); }).detach();
    entries_->has_thread = true;
    entries_->wakes.notify_all();
    lock.unlock();
  }
  if (!async) work->wait(kNoTimeout);  // raises what has failed
}

void WorkQueue::Serve(const std::shared_ptr<Entries>& entries) {
  std::unique_lock lock(entries->mutex);
  while (true) {
    entries->wakes.wait(lock, [&] { return entries->closing || !entries->waiting.empty(); });
    if (entries->waiting.empty()) return;
    Entry entry = entries->waiting.front();
    lock.unlock();
    entry.work->Run(entry.function);
    lock.lock();
    entries->waiting.pop_front();
    lock.unlock();
    entry = {};  // the function may own the queue, whose end takes the lock
    lock.lock();
  }
}

}  // namespace tandem::torch_distributed
