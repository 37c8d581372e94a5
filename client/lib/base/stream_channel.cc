#include "client/lib/base/stream_channel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/base/fork_guard.h"

namespace tandem::client {
namespace {

// Owned by the graph under capture; its end is the end of the last executable graph.
struct GraphLaunch {
  std::shared_ptr<void> keep_alive;
  std::shared_ptr<StreamChannel> channel;
  BoundRegistrations bound;
  int slot;
  const uint64_t born = ForkCount();
  ~GraphLaunch() {
    if (born != ForkCount()) {  // a forked child's copy of a graph: locks and channel are the parent's
      (void)new std::shared_ptr<void>(std::move(keep_alive));
      (void)new std::shared_ptr<StreamChannel>(std::move(channel));
      return;
    }
    channel->DropCaptured(slot);
    // The plan's, the session's or the channel's end may ask the daemon, wait for streams and call the GPU's
    // driver: not on this thread.
    DeferredReclaimer::Get().Discard(std::move(keep_alive));
    DeferredReclaimer::Get().Discard(std::move(channel));
  }
};

}  // namespace

Result<std::shared_ptr<StreamChannel>> StreamChannel::Make(uint64_t channel_id, int ring_fd, int words_fd,
                                                           uint32_t entries, uint64_t stream_id) {
  TANDEM_ASSIGN_OR_RETURN(ChannelProducer producer, ChannelProducer::Map(ring_fd, words_fd, entries));
  return std::make_shared<StreamChannel>(std::move(producer), channel_id, entries, stream_id);
}

StreamChannel::StreamChannel(ChannelProducer producer, uint64_t channel_id, uint32_t entries,
                             uint64_t stream_id)
    : channel_id_(channel_id),
      stream_id_(stream_id),
      producer_(std::move(producer)),
      in_flight_(entries),
      captured_(kCapturedSlots) {}

StreamChannel::~StreamChannel() {
  DeferredReclaimer::Get().Keep(std::make_shared<ChannelProducer>(std::move(producer_)), std::move(pin_));
}

Status StreamChannel::Pin(ClientDevice& device, const std::string& gpu_uuid) {
  std::span<std::byte> pages = producer_.words().pages();
  TANDEM_ASSIGN_OR_RETURN(pin_, device.PinWords(gpu_uuid, pages.data(), pages.size()));
  DeferredReclaimer::Get().Watch(weak_from_this());
  return Status::Ok();
}

Status StreamChannel::Launch(LaunchEntry* entry, const std::shared_ptr<ClientPlanState>& plan,
                             LaunchStream* stream, bool reported, BoundRegistrations* bound) {
  std::lock_guard lock(mutex_);
  ReapLocked();
  // Outcomes are kept for as many launches as the ring has entries: no more may be in flight, whatever the
  // engine has taken off the ring.
  if (producer_.NextSequence() - reaped_ > in_flight_.size() || producer_.Room() == 0) {
    if (!Released()) {
      return ResourceExhausted("the stream has " + std::to_string(in_flight_.size()) + " launches in flight")
          .WithDetail({.reason = "RING_FULL",
                       .who = {},
                       .field = {},
                       .limit = static_cast<long long>(in_flight_.size())});
    }
  }
  TANDEM_RETURN_IF_ERROR(producer_.TryPush(entry));
  InFlight& slot = Slot(entry->sequence);
  slot.plan = plan;
  slot.generation = entry->group_generation;
  slot.reported = reported;
  slot.bound.Take(bound);
  plan->Began();
  // The driver may hold up what follows: other streams must be able to launch the plan meanwhile.
  auto [before, number] = plan->Follow(*this, entry->sequence);
  Status status;
  if (before != nullptr && before->producer_.Done() < number) {
    status = stream->Await(before->producer_.done(), number);
    slot.after = std::move(before);
  }
  if (status.ok()) status = stream->Arrive(producer_.request(), producer_.done(), entry->sequence);
  if (status.ok()) return status;
  // The stream takes no work: the launch arrives all the same, since the other ranks count on it.
  producer_.request()->store(entry->sequence, std::memory_order_release);
  return status;
}

Status StreamChannel::Capture(LaunchEntry* entry, const std::shared_ptr<ClientPlanState>& plan,
                              LaunchStream* stream, std::shared_ptr<void> keep_alive,
                              BoundRegistrations* bound) {
  std::lock_guard lock(mutex_);
  DisarmDroppedLocked();
  Result<int> armed = producer_.Arm(entry);
  if (!armed.ok() && armed.status().code() == Code::kResourceExhausted) {
    return armed.status().WithDetail(
        {.reason = producer_.Room() == 0 ? "RING_FULL" : "SLOTS_FULL", .who = {}, .field = {}});
  }
  TANDEM_RETURN_IF_ERROR(armed.status());
  int slot = *armed;
  captured_[static_cast<size_t>(slot)] = {plan, entry->group_generation, producer_.CapturedFailures(slot),
                                          false};
  captured_count_.fetch_add(1, std::memory_order_acq_rel);
  auto launch = std::make_shared<GraphLaunch>();
  launch->keep_alive = std::move(keep_alive);
  launch->channel = shared_from_this();
  launch->bound.Take(bound);
  launch->slot = slot;
  TANDEM_RETURN_IF_ERROR(stream->RetainInCapture(std::move(launch)));
  return stream->ArriveCaptured(producer_.doorbell(slot), producer_.captured_done(slot));
}

void StreamChannel::Reap() {
  std::lock_guard lock(mutex_);
  ReapLocked();
}

void StreamChannel::TryReap() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) ReapLocked();
}

void StreamChannel::ReapLocked() {
  if (has_dropped_.load(std::memory_order_acquire)) DisarmDroppedLocked();
  // Done first, then what is written before it: a release is flagged, and a failure counted, before the done
  // value that comes of it. Read the other way round, launches that a release has just let go would pass for
  // ended well.
  uint64_t done = std::min(producer_.Done(), producer_.NextSequence() - 1);
  bool released = Released();
  uint64_t failures = producer_.Failures();
  bool look = released || failures != seen_failures_;
  uint64_t failed = 0;
  for (; reaped_ < done; ++reaped_) {
    InFlight& slot = Slot(reaped_ + 1);
    if (look) {
      LaunchOutcome outcome = producer_.Outcome(reaped_ + 1);
      ClientGroupState& group = *slot.plan->group();
      if (outcome.generation != 0) group.Learn(outcome.generation);
      if (!outcome.status.ok()) {
        ++failed;
        if (!slot.reported || outcome.status.code() == Code::kAborted) {
          slot.plan->Fail(stream_id_, slot.generation, outcome.status);
        }
      }
    }
    slot.plan->Ended();
    slot.plan.reset();
    slot.bound.Clear();
    slot.after.reset();
  }
  if (!look) return;
  for (int i = 0; HasCaptured() && i < kCapturedSlots; ++i) ReapCapturedLocked(i);
  // A failure may be counted whose launch is not done yet: it is looked at with its launch, so do not take
  // note of it.
  bool all_ended = reaped_ + 1 == producer_.NextSequence();
  seen_failures_ += all_ended ? failures - seen_failures_ : std::min(failed, failures - seen_failures_);
}

void StreamChannel::ReapCapturedLocked(int index) {
  CapturedSlot& slot = captured_[static_cast<size_t>(index)];
  if (slot.plan == nullptr) return;
  if (producer_.CapturedFailures(index) != slot.failures) {
    LaunchOutcome outcome = producer_.CapturedFailure(index, &slot.failures);
    if (outcome.generation != 0) slot.plan->group()->Learn(outcome.generation);
    slot.plan->Fail(kReplays, slot.generation, outcome.status, true);
  }
  if (!Released()) return;
  // Nobody takes a released channel's doorbells any more: one that rings is a replay since the last look. A
  // replay that the engine had taken may have been ended by the release, so it is reported in any case, but
  // once.
  bool rang = producer_.doorbell(index)->exchange(0, std::memory_order_acq_rel) != 0;
  if (rang || !slot.cut_off)
    slot.plan->Fail(kReplays, slot.generation, producer_.words().ClosedStatus(), rang);
  slot.cut_off = true;
}

bool StreamChannel::Idle() { return LockIdle().owns_lock(); }

std::unique_lock<std::mutex> StreamChannel::LockIdle() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return lock;
  ReapLocked();
  if (reaped_ + 1 != producer_.NextSequence() || HasCaptured()) lock.unlock();
  return lock;
}

bool StreamChannel::Drained() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (has_dropped_.load(std::memory_order_acquire)) DisarmDroppedLocked();
  uint64_t last = producer_.NextSequence() - 1;
  return !HasCaptured() && producer_.Done() >= last &&
         producer_.request()->load(std::memory_order_acquire) >= last;
}

void StreamChannel::DropCaptured(int slot) {
  // May run on a queue's thread while a launch holds `mutex_` and waits for that queue's lock: only take
  // note.
  std::lock_guard lock(dropped_mutex_);
  dropped_.push_back(slot);
  has_dropped_.store(true, std::memory_order_release);
}

void StreamChannel::DisarmDroppedLocked() {
  std::lock_guard lock(dropped_mutex_);
  std::erase_if(dropped_, [&](int slot) {
    // A full ring: the next call tries again. A released channel has no engine that needs to know.
    Status status = producer_.Disarm(slot);
    if (!status.ok() && status.code() == Code::kResourceExhausted) return false;
    ReapCapturedLocked(
        slot);  // its last replays have ended, and nobody looks at the slot for this plan any more
    captured_[static_cast<size_t>(slot)] = {};
    captured_count_.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  });
  has_dropped_.store(!dropped_.empty(), std::memory_order_release);
}

}  // namespace tandem::client
