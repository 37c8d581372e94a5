// File: channel_server.h
//
// Serves the channels of one engine: takes entries off their rings, notices when a stream has reached a
// launch (request word, doorbell), and lets it arrive at the launch queue. One launch of a channel at a time:
// the next one arrives only after the last has ended, whatever a client writes into its words.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/launch/launch.h"
#include "engine/launch/launch_queue.h"
#include "engine/memory/deferred_release.h"
#include "ipc/futex.h"
#include "tandem/status.h"

namespace tandem::engine {

class ChannelServer {
 public:
  // `dead` takes closed channels whose words are registered with `backend`.
  ChannelServer(LaunchQueue* queue, Backend* backend, std::shared_ptr<DeferredRelease> dead,
                uint64_t engine_generation)
      : queue_(queue), backend_(backend), dead_(std::move(dead)), generation_(engine_generation) {}

  // RESOURCE_EXHAUSTED while too many closed channels cannot be let go of.
  Status Open(uint64_t id, uint64_t session_id, uint32_t entries, int ring_fd, int words_fd);
  // Launches that have arrived end as if the channel were there; the others never arrive. NOT_FOUND for a
  // stranger.
  Status Close(uint64_t id);

  // One look at every channel. True if anything was taken or has arrived.
  bool Poll();
  // Takes all entries off the rings; nothing arrives.
  void TakeAll();
  // Puts the first kernel of the launch that is expected next onto the lanes, where that can be
  // (speculative_launch.h). True if it did.
  bool SpeculateNext();
  // Entries that have not arrived, or captured launches that live: the engine must go on looking.
  bool HasWaiting() const;
  bool HasCaptured() const { return captured_ > 0; }
  // CLOCK_MONOTONIC nanoseconds of the last doorbell.
  uint64_t last_doorbell_ns() const { return last_doorbell_ns_; }

  // Before a sleep: announces it on every channel and adds the words to sleep on (as many as fit; false if
  // some do not, then the sleep must be short). True in `news` if something came meanwhile.
  bool PrepareSleep(std::vector<FutexWaiter>* waiters, bool* news);
  void EndSleep();
  void Beat(uint64_t now_ns);

  // Ends every channel: streams that wait are released.
  void ReleaseAll(const Status& why);

 private:
  static LaunchRequest RequestOf(const std::shared_ptr<Channel>& channel, const LaunchEntry& entry);
  static LaunchRequest CapturedRequestOf(const std::shared_ptr<Channel>& channel, int slot);
  bool PollRing(const std::shared_ptr<Channel>& channel);
  void TakeCapturedEntry(const std::shared_ptr<Channel>& channel, const LaunchEntry& entry);
  void EndChannel(const std::shared_ptr<Channel>& channel, const std::string& why);
  bool ArriveNext(const std::shared_ptr<Channel>& channel);
  bool PollDoorbells(const std::shared_ptr<Channel>& channel);
  // A captured launch as forecasts name it.
  static int64_t NameOf(const Channel& channel, int slot) {
    return static_cast<int64_t>(channel.id * kCapturedSlots) + slot;
  }

  LaunchQueue* queue_;
  Backend* backend_;
  std::shared_ptr<DeferredRelease> dead_;
  uint64_t generation_;
  std::vector<std::shared_ptr<Channel>> channels_;
  int captured_ = 0;  // live captured launches
  uint64_t last_doorbell_ns_ = 0;
  // The forecast of the last captured launch; null once another launch has arrived.
  std::shared_ptr<Forecast> after_last_;
};

}  // namespace tandem::engine
