// File: daemon_calls.h
//
// `DaemonCalls`: a session's calls over gRPC, with its token and a deadline. Where the session outlives its
// daemon, calls that the end of a daemon has cut off are made again with the next one (docs/restart.md).
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "client/grpc_plugin/convert.h"
#include "client/grpc_plugin/lease.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::client {

// Time for the daemon beyond the caller's deadline, to report who is late.
inline constexpr Milliseconds kAnswerTime(3000);

// A deadline as requests have it, in milliseconds.
inline uint32_t DeadlineMs(Milliseconds deadline) {
  return static_cast<uint32_t>(std::clamp<int64_t>(deadline.count(), 1, UINT32_MAX));
}

// Thread-safe after Open.
class DaemonCalls {
 public:
  using Clock = std::chrono::steady_clock;
  using Stub = v1::Tandem::StubInterface;
  // `lease` outlives this.
  explicit DaemonCalls(Lease& lease) : lease_(lease) {}

  // The session's token (its bytes), the lease's path, which errors name, and the socket for calls.
  void Open(const std::string& token, const std::string& address, const std::string& grpc_socket);
  // As ControlCallbacks::cancellation. Before any call that waits for ranks.
  void CancelBy(std::function<std::shared_ptr<Cancellation>()> cancellation) {
    cancellation_ = std::move(cancellation);
  }
  // In hexadecimal digits, as calls carry it.
  std::string token() {
    std::lock_guard lock(stub_mutex_);
    return token_;
  }
  // Before a checkpoint: ends the connection for calls. DEADLINE_EXCEEDED: gRPC keeps it. No call is under way.
  Status Disconnect(Clock::time_point deadline);
  // Calls are made again, with the token of a restored session.
  void Reconnect(const std::string& token);
  // The stub for a daemon by its number; null before Open. Each daemon gets a new channel: an old channel may
  // not have noticed that its daemon has ended.
  std::shared_ptr<Stub> StubOf(uint64_t daemon);

  // One try of a call.
  struct Attempt {
    Clock::time_point end;
    uint64_t daemon;     // Lease::AwaitAttached
    bool again = false;  // an earlier daemon may have done it already, and its answer was lost
  };

  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::Tandem::StubInterface::*)(grpc::ClientContext*, const Request&, Reply*);

  // `work(attempt)`, again with the next daemon while daemons go. For calls that do no harm when made twice.
  template <typename Work>
  auto Repeat(Milliseconds deadline, Work work) {
    Attempt attempt{Clock::now() + deadline, 0};
    while (true) {
      attempt.daemon = lease_.AwaitAttached(attempt.end);
      auto result = work(attempt);
      const Status& status = StatusOf(result);
      const bool announced = status.detail().reason == "RESTARTING";
      if (!IsRestart(status) || !lease_.AwaitNext(attempt.daemon, attempt.end, announced)) return result;
      attempt.again = true;
    }
  }

  template <typename Request, typename Reply>
  Status Call(Method<Request, Reply> method, const Request& request, Reply* reply, const Attempt& attempt) {
    const std::shared_ptr<Stub> stub = StubOf(attempt.daemon);
    if (stub == nullptr) return FailedPrecondition("the client is not attached");
    const auto left = std::chrono::duration_cast<Milliseconds>(attempt.end - Clock::now());
    grpc::ClientContext context;
    context.AddMetadata("tandem-token", token());
    context.set_deadline(std::chrono::system_clock::now() + left);
    const CancelScope scope(kWaitsForRanks<Request> && cancellation_ ? cancellation_() : nullptr,
                            [&context] { context.TryCancel(); });
    const auto reported = [&](const grpc::Status& status) {
      if (!status.ok() && scope.Cancelled()) {
        AwaitAnswer(*stub);
        return Status(Code::kCancelled, "the call was cancelled");
      }
      return FromGrpc(status, context, address_);
    };
    if (!attempt.again) return reported((stub.get()->*method)(&context, request, reply));
    Request repeated = request;
    reply->Clear();
    if constexpr (requires { repeated.set_again(true); }) repeated.set_again(true);
    if constexpr (requires { repeated.set_deadline_ms(1); })
      repeated.set_deadline_ms(
          static_cast<uint32_t>(std::min<uint64_t>(repeated.deadline_ms(), DeadlineMs(left - kAnswerTime))));
    return reported((stub.get()->*method)(&context, repeated, reply));
  }
  // The call alone.
  template <typename Request, typename Reply>
  Status CallAgain(Method<Request, Reply> method, const Request& request, Reply* reply,
                   Milliseconds deadline) {
    return Repeat(deadline, [&](const Attempt& attempt) { return Call(method, request, reply, attempt); });
  }
  // The call alone, of something that is to end: an earlier daemon may have ended it.
  template <typename Request, typename Reply>
  Status EndAgain(Method<Request, Reply> method, const Request& request, Reply* reply,
                  Milliseconds deadline) {
    return Repeat(deadline, [&](const Attempt& attempt) {
      const Status status = Call(method, request, reply, attempt);
      return attempt.again && status.code() == Code::kNotFound ? Status::Ok() : status;
    });
  }

 private:
  static const Status& StatusOf(const Status& status) { return status; }
  template <typename T>
  static const Status& StatusOf(const Result<T>& result) {
    return result.status();
  }
  std::shared_ptr<Stub> MakeStub() const;
  // Returns once the daemon has taken note of what was sent before, a cancellation too, or does not answer.
  void AwaitAnswer(Stub& stub);

  // Requests whose calls can be cancelled: what they have begun is taken up again, but a session ends.
  template <typename Request>
  static constexpr bool kWaitsForRanks =
      std::is_same_v<Request, v1::JoinGroupRequest> || std::is_same_v<Request, v1::PrepareRequest> ||
      std::is_same_v<Request, v1::RenewGroupRequest> || std::is_same_v<Request, v1::SuspendGroupRequest> ||
      std::is_same_v<Request, v1::ServeSuspensionRequest> || std::is_same_v<Request, v1::RendezvousRequest> ||
      std::is_same_v<Request, v1::LeaveGroupRequest> || std::is_same_v<Request, v1::DetachRequest>;

  Lease& lease_;
  std::function<std::shared_ptr<Cancellation>()> cancellation_;
  std::string address_, grpc_socket_;
  std::mutex stub_mutex_;
  std::string token_;           // guarded
  bool open_ = false;           // guarded
  std::shared_ptr<Stub> stub_;  // guarded; null before Open
  uint64_t stub_daemon_ = 0;    // guarded: whose it is
};

}  // namespace tandem::client
