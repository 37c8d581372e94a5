// File: launch_state.h
//
// The state that launches in flight share with their handles: the group's generation and end, the plan's
// launches not ended, and the failures that no call has returned yet. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tandem/client.h"

namespace tandem::client {

class StreamChannel;

// Why a suspended group launches nothing.
Status SuspendedGroup();

// A group's side of the state. Each launch carries `generation`. A restart of an engine makes a newer
// generation known. Launches move on to it once a call has returned the restart to this rank's user, so that
// everything enqueued before ends with ABORTED on all ranks alike.
class ClientGroupState {
 public:
  ClientGroupState(uint64_t id, uint64_t generation)
      : id_(id), generation_(generation), latest_(generation) {}

  uint64_t id() const { return id_; }
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // A newer generation is known, from an event or a launch's outcome.
  void Learn(uint64_t generation);
  // The group has ended; the first reason stays.
  void Break(const Status& why);
  // Why no launch can be made, now or ever; OK while they can.
  Status Broken() const;
  // Why the group has ended; OK while it lives, asleep or awake.
  Status Ended() const;
  // This rank has begun to suspend the group, or has resumed it, under `generation` then. Nothing of the
  // group is in flight.
  void SetSuspended() { is_suspended_.store(true, std::memory_order_release); }
  void Resume(uint64_t generation);
  bool suspended() const { return is_suspended_.load(std::memory_order_acquire); }

  // True if a launch would still carry an older generation than the engines have, and no call has reported
  // the restart: report it, then MoveOn.
  bool Outdated() const {
    return latest_.load(std::memory_order_acquire) > generation() &&
           !awaiting_.load(std::memory_order_acquire);
  }
  // A call reports that launches of generation `reported` ended, and later launches carry a newer
  // generation. False if another call has reported it already.
  bool MoveOn(uint64_t reported);
  // The generation for a new launch. Waits up to `deadline` if a restart was reported and the engines are not
  // back yet; UNAVAILABLE then.
  Result<uint64_t> ForLaunch(Milliseconds deadline);

  std::atomic<uint64_t> pending{0};  // launches pushed and not known to have ended

 private:
  const uint64_t id_;
  std::atomic<uint64_t> generation_;
  std::atomic<uint64_t> latest_;
  std::atomic<bool> awaiting_{false};
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> is_suspended_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status broken_;
};

inline constexpr uint64_t kAnyStream = 0;
// Where replays of captured launches are counted: a graph may be launched on any stream, so any call reports
// their failures.
inline constexpr uint64_t kReplays = ~uint64_t{0};

// Whether operands may have been written, of two launches: the worse of both.
constexpr std::optional<bool> MoreStarted(std::optional<bool> a, std::optional<bool> b) {
  if (a == true || b == true) return true;
  return a.has_value() && b.has_value() ? std::optional(false) : std::nullopt;
}

// A plan's side of it.
class ClientPlanState {
 public:
  ClientPlanState(uint64_t plan_id, std::shared_ptr<ClientGroupState> group)
      : plan_id_(plan_id), group_(std::move(group)) {}

  uint64_t plan_id() const { return plan_id_; }
  const std::shared_ptr<ClientGroupState>& group() const { return group_; }

  void Began() {
    pending_.fetch_add(1, std::memory_order_relaxed);
    group_->pending.fetch_add(1, std::memory_order_relaxed);
  }
  void Ended() {
    group_->pending.fetch_sub(1, std::memory_order_relaxed);
    pending_.fetch_sub(1, std::memory_order_release);
  }
  uint64_t Pending() const { return pending_.load(std::memory_order_acquire); }

  // The user ends the plan, which cuts off launches in flight without an engine's restart. Returns the state
  // before.
  bool SetReleased(bool released) { return released_.exchange(released, std::memory_order_acq_rel); }
  bool Released() const { return released_.load(std::memory_order_acquire); }
  // A call has returned how a launch of `generation` ended: if a restart cut it off, the group moves on.
  void Told(uint64_t generation, const Status& status);

  // Takes note of a launch by its channel and its number there. Returns the launch before it if that was made
  // on another channel that is still there; else null.
  std::pair<std::shared_ptr<StreamChannel>, uint64_t> Follow(StreamChannel& channel, uint64_t sequence);

  bool HasFailed() const { return failure_count_.load(std::memory_order_acquire) != 0; }
  // Keeps a failure for the next call. `stream` is where the launch was made (LaunchStream::Id()). Only the
  // first of the launches that one restart ended is kept. `again`: a replay of a captured launch. One failure
  // of replays is kept for each code until a call returns it.
  void Fail(uint64_t stream, uint64_t generation, const Status& status, bool again = false);
  // Takes the oldest failure, of `stream` and of replays only unless kAnyStream; notifies the group if it was
  // a restart's.
  std::optional<Status> TakeFailure(uint64_t stream) { return Take(stream, Kind::kAny); }
  // The same, but only failures that a restart caused and that no call has returned yet, of this plan or
  // another. The others are left to Wait and Query. TakeOther: all failures that no restart caused.
  std::optional<Status> TakeAborted(uint64_t stream) { return Take(stream, Kind::kAborted); }
  std::optional<Status> TakeOther(uint64_t stream) { return Take(stream, Kind::kOther); }

 private:
  struct KeptFailure {
    uint64_t stream;
    uint64_t generation;
    Status status;
  };
  enum class Kind { kAny, kAborted, kOther };
  std::optional<Status> Take(uint64_t stream, Kind kind);
  // Adds `started` to the kept failure of that generation's restart. False if no such failure is kept any
  // more, and a call has returned a better `started`.
  bool KeptLocked(uint64_t generation, std::optional<bool> started);

  // More are of no use to anybody, and a failing loop must not grow the list without bound.
  static constexpr size_t kMaxFailures = 256;

  const uint64_t plan_id_;
  const std::shared_ptr<ClientGroupState> group_;
  std::atomic<uint64_t> pending_{0};
  std::atomic<bool> released_{false};
  std::mutex last_mutex_;
  // The channel of the last launch on a stream outside captures. The address is the channel's while it lives.
  std::weak_ptr<StreamChannel> last_channel_;
  const StreamChannel* last_address_ = nullptr;
  uint64_t last_sequence_ = 0;
  std::atomic<uint64_t> failure_count_{0};
  std::mutex mutex_;
  std::vector<KeptFailure> failures_;
  uint64_t aborted_generation_ = 0;
  std::optional<bool> aborted_started_;  // of that generation's launches
};

}  // namespace tandem::client
