// File: stream_channel.h
//
// One client stream's channel to an engine: pushes launches, puts the words' operations on the stream, and
// learns how launches ended. The launch path allocates nothing.
//
// Thread rule: thread-safe. One mutex covers ring push and stream operations, so that sequence numbers reach
// the stream in order; it is never held while anybody waits for room.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/launch_state.h"
#include "client/lib/base/registrations.h"
#include "ipc/channel.h"

namespace tandem::client {

class StreamChannel : public std::enable_shared_from_this<StreamChannel> {
 public:
  static Result<std::shared_ptr<StreamChannel>> Make(uint64_t channel_id, int ring_fd, int words_fd,
                                                     uint32_t entries, uint64_t stream_id);
  StreamChannel(ChannelProducer producer, uint64_t channel_id, uint32_t entries, uint64_t stream_id);
  // Its memory goes to the DeferredReclaimer: streams may still look at it.
  ~StreamChannel();
  // Makes the words reachable for streams of that GPU. Before the first launch.
  Status Pin(ClientDevice& device, const std::string& gpu_uuid);

  uint64_t id() const { return channel_id_; }
  // LaunchStream::Id() of the stream that the channel belongs to, or another number for one of captured
  // launches.
  uint64_t stream_id() const { return stream_id_; }

  // Pushes `entry` and enqueues its arrival and its wait. If the plan's launch before was made on another
  // channel, the stream arrives when that one is done. `reported`: the caller returns a failure of this launch
  // itself, so its outcome is not returned twice. `bound` is taken over once it is pushed. RESOURCE_EXHAUSTED
  // with reason RING_FULL when there is no room now, UNAVAILABLE once released; nothing was enqueued then.
  Status Launch(LaunchEntry* entry, const std::shared_ptr<ClientPlanState>& plan, LaunchStream* stream,
                bool reported, BoundRegistrations* bound);
  // The same for a stream that captures: every replay of the graph is a launch. `keep_alive` and `bound` are
  // held by the graph: without the plan and its memory the engine would refuse the replays.
  // RESOURCE_EXHAUSTED with reason SLOTS_FULL: another channel must take it.
  Status Capture(LaunchEntry* entry, const std::shared_ptr<ClientPlanState>& plan, LaunchStream* stream,
                 std::shared_ptr<void> keep_alive, BoundRegistrations* bound);

  // Hands the outcomes of launches that have ended to their plans.
  void Reap();
  // The same unless a launch is being made, which reaps itself: for threads that must not wait for one.
  void TryReap();

  // Somebody has ended the channel: its launches all end by that, and another channel must be opened.
  bool Released() const { return producer_.words().Released(); }
  // Ends it from here, for a daemon that is gone. Repeat while HasCaptured().
  void Release(const Status& why) { producer_.words().Release(why); }
  // A graph that can be replayed still uses the channel's words.
  bool HasCaptured() const { return captured_count_.load(std::memory_order_acquire) != 0; }
  // A graph has dropped its captured launch, and the engine does not know it yet: Reap sends that.
  bool HasDropped() const { return has_dropped_.load(std::memory_order_acquire); }
  // No launch is in flight or being made, and no graph can make one.
  bool Idle();
  // The lock that keeps it so; without the lock if it is not.
  std::unique_lock<std::mutex> LockIdle();
  // The stream has passed all words of the channel, as far as they show; false while a launch is being made.
  bool Drained();

  // A graph has let go of `slot`; called from any thread, also a stream's own.
  void DropCaptured(int slot);

 private:
  struct InFlight {
    std::shared_ptr<ClientPlanState> plan;
    uint64_t generation = 0;
    bool reported = false;
    BoundRegistrations bound;
    std::shared_ptr<StreamChannel> after;  // its words, which the stream may wait for
  };
  struct CapturedSlot {
    std::shared_ptr<ClientPlanState> plan;  // null: not live
    uint64_t generation = 0;
    uint64_t failures = 0;  // of the slot, handed on or of an earlier graph
    bool cut_off = false;   // the channel's end has been handed on
  };

  void ReapLocked();
  void ReapCapturedLocked(int slot);
  void DisarmDroppedLocked();
  InFlight& Slot(uint64_t sequence) { return in_flight_[sequence & (in_flight_.size() - 1)]; }

  const uint64_t channel_id_;
  const uint64_t stream_id_;
  std::mutex mutex_;
  ChannelProducer producer_;
  std::shared_ptr<void> pin_;  // the words' registration with the GPU's driver; dropped before the words
  std::vector<InFlight> in_flight_;  // by sequence
  uint64_t reaped_ = 0;              // launches up to this one have been handed on
  uint64_t seen_failures_ = 0;
  std::vector<CapturedSlot> captured_;
  std::atomic<int> captured_count_{0};
  std::mutex dropped_mutex_;
  std::vector<int> dropped_;
  std::atomic<bool> has_dropped_{false};
};

}  // namespace tandem::client
