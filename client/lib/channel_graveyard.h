// File: channel_graveyard.h
//
// Where channels end. Streams may still look at the words of a channel that has ended, so its memory is kept
// until they have passed, and a grace time. And pages that are registered with a GPU's driver may be
// unregistered only while no stream of the process waits on a word: the driver blocks behind all work of the
// GPU, with its locks held, and a launch that another thread is about to make may be what that work waits
// for.
//
// One a process, never destroyed. A thread of its own, started with the first thing buried, does what may
// block. Pages that cannot be unregistered stay; their number is bounded by the channels that ended while the
// process never was idle. Thread-safe. In a forked child everything is leaked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ipc/channel.h"

namespace tandem::client {

class StreamChannel;

class ChannelGraveyard {
 public:
  static ChannelGraveyard& Get();

  // Takes a channel that nobody pushes to any more; lets go of it once its streams have passed.
  void Bury(std::shared_ptr<StreamChannel> channel);
  // Takes a channel's memory at its end.
  void Keep(ChannelProducer producer, std::shared_ptr<void> pin);
  // Drops `object` on the graveyard's thread: for threads that must not wait.
  void Discard(std::shared_ptr<void> object);
  // Tells of a channel whose streams will wait on pinned words, before they do.
  void Watch(std::weak_ptr<StreamChannel> channel);
  // For tests: ended channels, pinned pages and discarded objects that are still kept, and another grace time
  // than 10 s.
  size_t kept() const;
  void SetGrace(std::chrono::milliseconds grace);

 private:
  struct Grave {
    std::shared_ptr<StreamChannel> channel;
    std::chrono::steady_clock::time_point drained_at;  // epoch: not drained yet
  };
  struct Pages {
    ChannelProducer producer;
    std::shared_ptr<void> pin;  // dropped first
  };

  ChannelGraveyard();
  bool InChild() const;
  void WakeLocked();
  void Run();
  void Sweep();
  // Unpins `pages` if no watched channel has anything in flight; gives back those that must stay.
  std::vector<Pages> Unpin(std::vector<Pages> pages);

  const uint64_t born_;  // ForkCount() then
  mutable std::mutex mutex_;
  std::chrono::milliseconds grace_{10000};
  std::condition_variable changed_;
  bool running_ = false;
  std::vector<Grave> graves_;
  std::vector<Pages> pages_;
  size_t in_hand_ = 0;  // taken out of either for the moment
  std::vector<std::shared_ptr<void>> discarded_;
  size_t dropping_ = 0;       // of these, taken out to be dropped: what comes of that may be buried here
  std::mutex watched_mutex_;  // held while pages are unpinned: a new channel's first launch comes after
  std::vector<std::weak_ptr<StreamChannel>> watched_;
};

}  // namespace tandem::client
