// File: pending.h
//
// Calls that wait for other ranks, made in the background, and the end of a stream's work, both as descriptors
// for an event loop.
//
//   auto joining = tandem::StartJoin(client, options);
//   loop.WatchReadable((*joining).fd(), [&] { auto group = (*joining).Take(); … });
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tandem/client.h"

namespace tandem {

// A call that runs on another thread. Thread-safe.
class TANDEM_API PendingCall {
 public:
  // RESOURCE_EXHAUSTED: no thread or no descriptor.
  static Result<std::unique_ptr<PendingCall>> Start(std::function<void()> call);
  // Cancels a call that has not ended, and does not wait for it.
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;
  // Readable, for poll and epoll, once the call has ended, and from then on. It belongs to this object, and is
  // not to be read.
  int fd() const;
  bool HasEnded() const;
  // Ends the call with CANCELLED, where it waits for other ranks. It may succeed all the same.
  void Cancel();

 private:
  struct State;
  explicit PendingCall(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

// A call in the background that returns a handle. One thread at a time. Dropped before its end, it is
// cancelled, and a handle that comes all the same is dropped.
template <typename Handle>
class Pending {
 public:
  static Result<Pending> Start(std::function<Result<Handle>()> call) {
    auto result = std::make_shared<std::optional<Result<Handle>>>();
    auto started = PendingCall::Start([result, call = std::move(call)] { result->emplace(call()); });
    if (!started.ok()) return started.status();
    return Pending(*std::move(started), std::move(result));
  }
  int fd() const { return call_->fd(); }
  bool HasEnded() const { return call_->HasEnded(); }
  void Cancel() { call_->Cancel(); }
  // Returns the call's result, once. FAILED_PRECONDITION, reason NOT_ENDED: it has not ended. NOT_FOUND: the
  // result has been taken.
  Result<Handle> Take() {
    if (!HasEnded()) return FailedPrecondition("the call has not ended").WithDetail({.reason = "NOT_ENDED"});
    if (!result_->has_value()) return NotFound("the call's result has been taken");
    Result<Handle> taken = *std::move(*result_);
    result_->reset();
    return taken;
  }

 private:
  Pending(std::unique_ptr<PendingCall> call, std::shared_ptr<std::optional<Result<Handle>>> result)
      : call_(std::move(call)), result_(std::move(result)) {}
  std::unique_ptr<PendingCall> call_;
  std::shared_ptr<std::optional<Result<Handle>>> result_;
};

// Client::JoinGroup and Group::Prepare in the background, with their errors from Pending::Take.
inline Result<Pending<std::shared_ptr<Group>>> StartJoin(std::shared_ptr<Client> client,
                                                         JoinOptions options) {
  return Pending<std::shared_ptr<Group>>::Start(
      [client = std::move(client), options = std::move(options)] { return client->JoinGroup(options); });
}
inline Result<Pending<std::shared_ptr<Plan>>> StartPrepare(std::shared_ptr<Group> group, std::string key,
                                                           OpRequest request,
                                                           Milliseconds deadline = kDefaultDeadline) {
  return Pending<std::shared_ptr<Plan>>::Start([group = std::move(group), key = std::move(key),
                                                request = std::move(request),
                                                deadline] { return group->Prepare(key, request, deadline); });
}

// Adds 1 to the eventfd `event_fd` behind all work that is on the stream, launches and others; in a capture at
// each replay. Plan::Query then has the outcome of the launches without waiting. The descriptor is the
// caller's, who keeps it open until then. INVALID_ARGUMENT: a stream of another backend, or no descriptor.
TANDEM_API Status NotifyAfter(Group& group, StreamRef stream, int event_fd);

}  // namespace tandem
