#include "client/grpc_plugin/event_stream.h"

#include <chrono>
#include <utility>

#include "client/grpc_plugin/convert.h"
#include "common/exceptions.h"

namespace tandem::client {

using Clock = DaemonCalls::Clock;

Status EventStream::Start(std::function<void(const ControlEvent&)> on_event) {
  on_event_ = std::move(on_event);
  TANDEM_ASSIGN_OR_RETURN(thread_, StartThread("the daemon's events", [this] { Read(); }));
  return Status::Ok();
}

void EventStream::Read() {
  constexpr auto kForEver = std::chrono::hours(24 * 365);
  uint64_t daemon = 0;
  do {
    daemon = lease_.AwaitAttached(Clock::now() + kForEver);
    grpc::ClientContext context;
    context.AddMetadata("tandem-token", calls_.token());
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (lease_.paused()) continue;
      context_ = &context;
    }
    const auto stub = calls_.StubOf(daemon);
    if (stub != nullptr) {
      auto reader = stub->Events(&context, v1::EventsRequest());
      v1::Event event;
      while (reader->Read(&event)) {
        std::unique_lock lock(mutex_);
        const bool wanted = !stopping_;
        lock.unlock();
        if (wanted) on_event_(FromProto(event));
      }
      // Why it ended does not matter: the lease says whether the daemon is gone.
      reader->Finish();
    }
    std::lock_guard lock(mutex_);
    context_ = nullptr;
    changed_.notify_all();
  } while (lease_.AwaitNext(daemon, Clock::now() + kForEver));
}

void EventStream::Break() {
  std::unique_lock lock(mutex_);
  if (context_ != nullptr) context_->TryCancel();
  changed_.wait(lock, [this] { return context_ == nullptr; });
}

void EventStream::Silence() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

void EventStream::Stop() {
  Silence();
  if (thread_.joinable()) thread_.join();
}

}  // namespace tandem::client
