#include "client/lib/base/launch_state.h"

#include <algorithm>

#include "client/lib/base/stream_channel.h"

namespace tandem::client {

Status SuspendedGroup() {
  return FailedPrecondition("this rank has suspended the group: all ranks resume it first")
      .WithDetail({.reason = "SUSPENDED", .started = false});
}

void ClientGroupState::Learn(uint64_t generation) {
  std::lock_guard lock(mutex_);
  if (generation > latest_.load(std::memory_order_relaxed))
    latest_.store(generation, std::memory_order_release);
  changed_.notify_all();
}

void ClientGroupState::Break(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return;
  broken_ = why;
  is_broken_.store(true, std::memory_order_release);
  changed_.notify_all();
}

Status ClientGroupState::Broken() const {
  if (!is_broken_.load(std::memory_order_acquire)) return suspended() ? SuspendedGroup() : Status::Ok();
  std::lock_guard lock(mutex_);
  return broken_;
}

Status ClientGroupState::Ended() const {
  std::lock_guard lock(mutex_);
  return broken_;
}

void ClientGroupState::Resume(uint64_t generation) {
  std::lock_guard lock(mutex_);
  // Launches carry it from now on. A restart of an engine meanwhile concerns nobody.
  generation_.store(generation, std::memory_order_release);
  latest_.store(std::max(generation, latest_.load(std::memory_order_relaxed)), std::memory_order_release);
  awaiting_.store(false, std::memory_order_release);
  is_suspended_.store(false, std::memory_order_release);
  changed_.notify_all();
}

bool ClientGroupState::MoveOn(uint64_t reported) {
  std::lock_guard lock(mutex_);
  if (reported < generation_.load(std::memory_order_relaxed)) return false;
  const bool first = !awaiting_.load(std::memory_order_relaxed);
  uint64_t latest = latest_.load(std::memory_order_relaxed);
  if (latest > reported) {
    generation_.store(latest, std::memory_order_release);
    awaiting_.store(false, std::memory_order_release);
  } else {
    awaiting_.store(true, std::memory_order_release);
  }
  return first;
}

Result<uint64_t> ClientGroupState::ForLaunch(Milliseconds deadline) {
  if (!awaiting_.load(std::memory_order_acquire)) return generation();
  std::unique_lock lock(mutex_);
  bool back = changed_.wait_for(lock, deadline, [&] {
    return !broken_.ok() ||
           latest_.load(std::memory_order_relaxed) > generation_.load(std::memory_order_relaxed);
  });
  if (!broken_.ok()) return broken_;
  if (!back) return Unavailable("the group's engines have not come back after a restart");
  generation_.store(latest_.load(std::memory_order_relaxed), std::memory_order_release);
  awaiting_.store(false, std::memory_order_release);
  return generation();
}

std::pair<std::shared_ptr<StreamChannel>, uint64_t> ClientPlanState::Follow(StreamChannel& channel,
                                                                            uint64_t sequence) {
  std::lock_guard lock(last_mutex_);
  const uint64_t before = std::exchange(last_sequence_, sequence);
  if (last_address_ == &channel && !last_channel_.expired()) return {};
  std::pair launch(last_channel_.lock(), before);
  last_channel_ = channel.weak_from_this();
  last_address_ = &channel;
  return launch;
}

void ClientPlanState::Fail(uint64_t stream, uint64_t generation, const Status& status, bool again) {
  std::lock_guard lock(mutex_);
  if (again) {
    bool kept = std::any_of(failures_.begin(), failures_.end(), [&](const KeptFailure& failure) {
      return failure.stream == stream && failure.status.code() == status.code();
    });
    if (kept) return;
  }
  if (status.code() == Code::kAborted) {
    if (generation <= aborted_generation_ && !again && KeptLocked(generation, status.detail().started))
      return;
    aborted_started_ = generation > aborted_generation_
                           ? status.detail().started
                           : MoreStarted(aborted_started_, status.detail().started);
    aborted_generation_ = std::max(aborted_generation_, generation);
  }
  if (failures_.size() >= kMaxFailures) return;
  failures_.push_back({stream, generation, status});
  failure_count_.store(failures_.size(), std::memory_order_release);
}

bool ClientPlanState::KeptLocked(uint64_t generation, std::optional<bool> started) {
  if (generation < aborted_generation_) return true;
  const std::optional<bool> more = MoreStarted(aborted_started_, started);
  if (more == aborted_started_) return true;
  for (KeptFailure& failure : failures_) {
    if (failure.generation != generation || failure.status.code() != Code::kAborted) continue;
    failure.status = failure.status.WithStarted(more);
    aborted_started_ = more;
    return true;
  }
  return false;  // a call has returned that less was written
}

void ClientPlanState::Told(uint64_t generation, const Status& status) {
  // Without a restart no newer generation would ever come.
  if (status.code() == Code::kAborted && !Released()) group_->MoveOn(generation);
}

std::optional<Status> ClientPlanState::Take(uint64_t stream, Kind kind) {
  if (failure_count_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::optional<KeptFailure> taken;
  {
    std::lock_guard lock(mutex_);
    auto it = std::find_if(failures_.begin(), failures_.end(), [&](const KeptFailure& failure) {
      const bool aborted = failure.status.code() == Code::kAborted;
      if (kind != Kind::kAny && (kind == Kind::kAborted) != aborted) return false;
      if (stream != kAnyStream && failure.stream != stream && failure.stream != kReplays) return false;
      // One call of this rank, of any plan, reports a restart instead of making its launch: the other ranks
      // count on that.
      return kind != Kind::kAborted || Released() || group_->MoveOn(failure.generation);
    });
    if (it == failures_.end()) return std::nullopt;
    taken = std::move(*it);
    failures_.erase(it);
    failure_count_.store(failures_.size(), std::memory_order_release);
  }
  Told(taken->generation, taken->status);
  return taken->status;
}

}  // namespace tandem::client
