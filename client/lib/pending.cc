// Calls in the background, and descriptors for the end of a stream's work.
#include "tandem/pending.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "client/lib/base/cancellation.h"
#include "client/lib/handles.h"
#include "common/exceptions.h"
#include "common/unique_fd.h"

namespace tandem {

struct PendingCall::State {
  UniqueFd event;
  std::atomic<bool> has_ended{false};
  std::shared_ptr<client::Cancellation> cancellation = std::make_shared<client::Cancellation>();
};

PendingCall::PendingCall(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<PendingCall>> PendingCall::Start(std::function<void()> call) try {
  auto state = std::make_shared<State>();
  state->event.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state->event.valid()) return SystemError("eventfd", errno);
  std::unique_ptr<PendingCall> pending(new PendingCall(state));
  const auto run = [state, call = std::move(call)] {
    client::ThisThreadsCancellation() = state->cancellation;
    IgnoreExceptions(call);
    state->has_ended.store(true, std::memory_order_release);
    (void)::eventfd_write(state->event.get(), 1);
  };
  TANDEM_ASSIGN_OR_RETURN(std::thread thread, StartThread("a call in the background", run));
  // It ends soon after a cancellation, and keeps all that it uses.
  thread.detach();
  return pending;
}
TANDEM_CATCH_TO_STATUS

PendingCall::~PendingCall() {
  if (!HasEnded()) Cancel();
}

int PendingCall::fd() const { return state_->event.get(); }
bool PendingCall::HasEnded() const { return state_->has_ended.load(std::memory_order_acquire); }
void PendingCall::Cancel() {
  IgnoreExceptions([this] { state_->cancellation->Cancel(); });
}

Status NotifyAfter(Group& group, StreamRef ref, int event_fd) try {
  auto& handle = static_cast<client::GroupHandle&>(group);
  TANDEM_RETURN_IF_ERROR(handle.session()->CheckLaunchable());
  if (::fcntl(event_fd, F_GETFD) < 0)
    return InvalidArgument("event_fd is no descriptor")
        .WithDetail({.reason = "BAD_FIELD", .field = "event_fd"});
  TANDEM_ASSIGN_OR_RETURN(client::ClientDevice * device, handle.session()->device());
  client::LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(client::LaunchStream * stream, device->Open(ref, handle.gpu_uuid(), &storage));
  return stream->Notify(event_fd);
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem
