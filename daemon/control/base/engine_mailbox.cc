#include "daemon/control/base/engine_mailbox.h"

#include <string>
#include <utility>

#include "daemon/control/base/blame.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

void CommandBatch::Expect(int gpu) {
  MutexLock lock(mutex_);
  pending_.insert(gpu);
}

void CommandBatch::Done(int gpu, const Status& status) {
  MutexLock lock(mutex_);
  pending_.extract(gpu);
  if (!status.ok() && first_error_.ok()) first_error_ = status.WithContext("GPU " + std::to_string(gpu));
  changed_.notify_all();
}

Status CommandBatch::Wait(const Waiter& waiter) {
  MutexLock lock(mutex_);
  if (!waiter.Wait(lock, changed_, [this]() TANDEM_REQUIRES(mutex_) { return pending_.empty(); })) {
    if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
    const std::string gpu = std::to_string(*pending_.begin());
    return DeadlineExceeded("the engine of GPU " + gpu + " has not answered in time")
        .WithDetail(BlameGpu("ENGINE_LATE", *pending_.begin()));
  }
  return first_error_;
}

namespace {

// Some commands take their time: a plan's products are tried out, communicators meet.
constexpr std::chrono::seconds kCommandDeadline{60};

}  // namespace

EngineMailbox::EngineMailbox(int gpu, Engines& engines)
    : gpu_(gpu), engines_(engines), thread_([this] { Run(); }) {}

EngineMailbox::~EngineMailbox() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    generation_ = 0;
    changed_.notify_all();
  }
  thread_.join();
}

void EngineMailbox::SetGeneration(uint64_t generation) {
  MutexLock lock(mutex_);
  generation_ = generation;
}

void EngineMailbox::Push(std::function<Status(Engines&)> call, Completion done) {
  MutexLock lock(mutex_);
  items_.push_back({generation_, std::move(call), std::move(done)});
}

void EngineMailbox::Send() {
  MutexLock lock(mutex_);
  to_send_ = items_.size();
  changed_.notify_all();
}

void EngineMailbox::Post(engine::v1::Command command, std::vector<SharedFd> fds, Completion done) {
  // Shared, since std::function wants copies; each command is sent once.
  auto shared = std::make_shared<engine::v1::Command>(std::move(command));
  Push(
      [gpu = gpu_, shared, fds = std::move(fds)](Engines& engines) {
        std::vector<int> raw;
        for (const SharedFd& fd : fds) raw.push_back(fd->get());
        return engines.Call(gpu, std::move(*shared), raw, kCommandDeadline);
      },
      std::move(done));
}

void EngineMailbox::Post(engine::v1::Command command, std::vector<SharedFd> fds,
                         const std::shared_ptr<CommandBatch>& batch) {
  if (batch) batch->Expect(gpu_);
  Post(std::move(command), std::move(fds), [gpu = gpu_, batch](const Status& status) {
    if (batch) batch->Done(gpu, status);
  });
}

void EngineMailbox::PostAllocate(uint64_t segment_id, uint64_t bytes, std::function<void(SharedFd)> take,
                                 const std::shared_ptr<CommandBatch>& batch) {
  batch->Expect(gpu_);
  Push(
      [gpu = gpu_, segment_id, bytes, take = std::move(take)](Engines& engines) {
        Result<UniqueFd> fd = engines.AllocateSegment(gpu, segment_id, bytes);
        if (!fd.ok()) return fd.status();
        take(std::make_shared<const UniqueFd>(std::move(*fd)));
        return Status::Ok();
      },
      [gpu = gpu_, batch](const Status& status) { batch->Done(gpu, status); });
}

void EngineMailbox::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.fused(), [this]() TANDEM_REQUIRES(mutex_) { return stopping_ || to_send_ > 0; });
    if (items_.empty()) return;
    Item item = std::move(items_.front());
    items_.pop_front();
    if (to_send_ > 0) --to_send_;
    const bool current = item.generation != 0 && item.generation == generation_;
    lock.Unlock();
    const Status status = current ? item.call(engines_)
                                  : Unavailable("its engine is not running")
                                        .WithDetail({.reason = "ENGINE_DOWN", .who = {}, .field = {}});
    if (item.done) item.done(status);
    item = {};
    lock.Lock();
  }
}

}  // namespace tandem::daemon
