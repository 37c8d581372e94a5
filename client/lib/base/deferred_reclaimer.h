// File: deferred_reclaimer.h
//
// `DeferredReclaimer`: keeps the memory of channels that have ended until it can be freed. Streams may still
// look at the words of such a channel, so its memory is kept until they have passed, and a grace time.
//
// Pages that are registered with a GPU's driver may be unregistered only while no stream of the process
// waits on a word. The driver blocks behind all work of the GPU, with its locks held, and that work may wait
// for a launch that another thread is about to make. Pages that cannot be unregistered stay; their number is
// bounded by the channels that ended while the process never was idle.
//
// One a process, never destroyed. A separate thread makes the calls that may block; it starts with the first
// call. Thread-safe. In a forked child everything is leaked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace tandem::client {

class StreamChannel;

class DeferredReclaimer {
 public:
  static DeferredReclaimer& Get();

  // Takes a channel that nobody pushes to any more; lets go of it once its streams have passed.
  void Retire(std::shared_ptr<StreamChannel> channel);
  // Takes memory whose pages are pinned, once no stream will look at it any more. Null pin: drops it at once.
  void Keep(std::shared_ptr<void> memory, std::shared_ptr<void> pin);
  // Drops `object` on the reclaimer's thread: for threads that must not wait.
  void Discard(std::shared_ptr<void> object);
  // Drops `object` there once `ended`, which may use it, has returned true. Must not throw.
  void DiscardAfter(std::function<bool()> ended, std::shared_ptr<void> object);
  // Registers a channel whose streams will wait on pinned words, before they do.
  void Watch(std::weak_ptr<StreamChannel> channel);
  // For tests: ended channels, pinned pages and objects to be dropped that are still kept, and another grace
  // time than 10 s.
  size_t kept() const;
  void SetGrace(std::chrono::milliseconds grace);

 private:
  struct Retired {
    std::shared_ptr<StreamChannel> channel;
    std::chrono::steady_clock::time_point drained_at;  // epoch: not drained yet
  };
  struct Waiting {
    std::shared_ptr<void> object;
    std::function<bool()> ended;
  };
  struct Pages {
    std::shared_ptr<void> memory;
    std::shared_ptr<void> pin;  // dropped first
  };

  DeferredReclaimer();
  bool InChild() const;
  void WakeLocked();
  void Run();
  void RunOn();
  void Sweep();
  // Discards the objects whose work has ended.
  void SweepWaiting();
  // Unpins `pages` if no watched channel has anything in flight; gives back those that must stay.
  std::vector<Pages> Unpin(std::vector<Pages> pages);

  const uint64_t born_;  // ForkCount() then
  mutable std::mutex mutex_;
  std::chrono::milliseconds grace_{10000};
  std::condition_variable changed_;
  bool running_ = false;
  std::vector<Retired> retired_;
  std::vector<Pages> pages_;
  size_t in_hand_ = 0;  // taken out of either for the moment
  std::vector<Waiting> waiting_;
  std::vector<std::shared_ptr<void>> discarded_;
  size_t dropping_ = 0;       // of these, taken out to be dropped, which may retire channels here
  std::mutex watched_mutex_;  // held while pages are unpinned: a new channel's first launch comes after
  std::vector<std::weak_ptr<StreamChannel>> watched_;
};

}  // namespace tandem::client
