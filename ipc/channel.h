// File: channel.h
//
// Both ends of a channel (channel_layout.h has its bytes): ChannelProducer for the client, ChannelConsumer
// for the engine, ChannelWords for who releases streams when the engine is gone (tandemd, the client's
// watchdog).
//
//   client                                             engine
//   producer.TryPush(entry)          -- ring -->       consumer.Poll(&entry)
//   stream.WriteWord(request, seq)   -- word -->       consumer.Request() >= entry.sequence: the rank has
//   arrived stream.WaitWord(done, seq)      <-- record, word-- consumer.PublishStatus(seq, …);
//   consumer.Complete(seq) producer.Outcome(seq)
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "ipc/channel_layout.h"
#include "tandem/status.h"

namespace tandem {

// The descriptors of a channel: what tandemd makes, keeps, and hands to the client and to the engine.
struct ChannelMemory {
  UniqueFd ring;
  UniqueFd words;
};

// Makes a channel's memory, sealed and initialised. `entries` is a power of two up to kMaxChannelEntries,
// else INVALID_ARGUMENT.
Result<ChannelMemory> CreateChannelMemory(uint32_t entries);

// How a launch ended.
struct LaunchOutcome {
  Status status;
  int who_rank = -1;        // the rank that caused a failure; -1: none in particular
  uint64_t generation = 0;  // the group's, to be put into later entries
};

// The words of a channel, for whoever ends it. Thread-safe: all calls write atomics only.
class ChannelWords {
 public:
  ChannelWords() = default;
  static Result<ChannelWords> Map(int words_fd, uint32_t entries);

  // Ends the channel: says why (once: what was said first stays), flags it, and writes kReleaseValue into the
  // done words of the channel and of every captured slot. Only for a dead engine or daemon, or a channel
  // whose client broke the protocol. Call it again until the streams have drained: a replayed graph sets its
  // done word back to 0, and each call serves it anew, so that a replay never hangs.
  void Release(const Status& why);
  // Flagged before the done words are written: read it after them.
  bool Released() const { return header()->released.load(std::memory_order_acquire) != 0; }
  // Why it was released; OK before.
  Status ClosedStatus() const;
  // CLOCK_MONOTONIC nanoseconds of the engine's last look, and its generation.
  uint64_t Heartbeat() const { return header()->heartbeat.load(std::memory_order_relaxed); }
  uint64_t EngineGeneration() const { return header()->engine_generation.load(std::memory_order_relaxed); }
  bool valid() const { return mapping_.valid(); }
  // All of it: whole pages, to be made reachable for a GPU.
  std::span<std::byte> pages() const { return {mapping_.data(), mapping_.size()}; }

 protected:
  friend class ChannelProducer;
  friend class ChannelConsumer;
  ChannelWordsHeader* header() const { return mapping_.As<ChannelWordsHeader>(); }
  StatusRecord* record(uint64_t sequence) const {
    return mapping_.As<StatusRecord>(kStatusRecordsOffset) + (sequence & (entries_ - 1));
  }

  Mapping mapping_;
  uint32_t entries_ = 0;
};

// The client's end. One thread at a time (the library holds a mutex a channel); words may be given to any
// stream.
class ChannelProducer {
 public:
  // Maps both descriptors. INVALID_ARGUMENT if they are not a channel of `entries`.
  static Result<ChannelProducer> Map(int ring_fd, int words_fd, uint32_t entries);

  // Pushes a launch: sets entry->sequence (and kind), and wakes the engine if it sleeps. RESOURCE_EXHAUSTED
  // if the ring is full, UNAVAILABLE once the channel is released. The caller then enqueues on its stream:
  // write `sequence` to request(), wait for done() >= sequence.
  Status TryPush(LaunchEntry* entry);
  uint64_t NextSequence() const { return next_sequence_; }
  // Entries that fit now.
  uint32_t Room() const;

  Word* request() const { return &words_.header()->request; }
  Word* done() const { return &words_.header()->done; }
  // Sequences up to this one have ended; kReleaseValue after a release.
  uint64_t Done() const { return done()->load(std::memory_order_acquire); }
  // Grows with every failed launch: unchanged means that no outcome since needs a look.
  uint64_t Failures() const { return words_.header()->failures.load(std::memory_order_acquire); }
  // The outcome of a launch with Done() >= sequence. Kept until `entries` later launches have ended: look at
  // it before pushing on when Failures() has changed. After a release, launches that had not ended before get
  // the release's status.
  LaunchOutcome Outcome(uint64_t sequence) const;

  // Captured launches. Arm takes a free slot, pushes the template (sets kind and captured_slot), and returns
  // the slot; RESOURCE_EXHAUSTED if all 64 are live or the ring is full. Each replay: write done 0, doorbell
  // 1, wait done >= 1. Disarm when the last executable graph is gone; the slot is reusable once the engine
  // has taken note.
  Result<int> Arm(LaunchEntry* entry);
  Status Disarm(int slot);
  Word* doorbell(int slot) const { return &words_.header()->captured[slot].doorbell; }
  Word* captured_done(int slot) const { return &words_.header()->captured[slot].done; }
  // The outcome of the slot's latest replay.
  LaunchOutcome CapturedOutcome(int slot) const;
  // How many of the slot's replays have failed since the channel was made, whatever graphs had the slot.
  uint64_t CapturedFailures(int slot) const;
  // How the latest of these ended, however many have gone well since; `number` is its own among them. A
  // replay that a release cut off is none.
  LaunchOutcome CapturedFailure(int slot, uint64_t* number) const;

  ChannelWords& words() { return words_; }
  const ChannelWords& words() const { return words_; }

 private:
  Status Push(LaunchEntry* entry);
  RingHeader* ring() const { return ring_.As<RingHeader>(); }

  Mapping ring_;
  ChannelWords words_;
  uint64_t produced_ = 0;
  uint64_t next_sequence_ = 1;
  std::bitset<kCapturedSlots> live_slots_;
};

// The engine's end. One thread at a time.
class ChannelConsumer {
 public:
  static Result<ChannelConsumer> Map(int ring_fd, int words_fd, uint32_t entries);

  // Takes the next entry, copied out; false if there is none. Writes the first `binding_count` bindings, as
  // far as an entry has room for them. At most `entries` are seen ahead and nothing outside of the ring is
  // read, whatever the client wrote into the ring's header.
  bool Poll(LaunchEntry* entry);
  // The last launch that the client's stream has reached.
  uint64_t Request() const { return words_.header()->request.load(std::memory_order_acquire); }
  Word* request() const { return &words_.header()->request; }
  // Takes a doorbell: true once for each time the stream rang.
  bool TakeDoorbell(int slot);

  // Writes how a launch ended (or will have ended when its done value, written by a lane, is seen). Before
  // Complete or before the lane is released, never after. `who_rank` -1: none. The reason of the status's
  // detail crosses, unless it is longer than kStatusReasonBytes - 1. A message that is too long is cut.
  void PublishStatus(uint64_t sequence, const Status& status, uint64_t generation, int who_rank = -1);
  // The same in short, for a launch that went well.
  void PublishOk(uint64_t sequence, uint64_t generation);
  // The CPU's done: only for launches that no lane completes.
  void Complete(uint64_t sequence) { done()->store(sequence, std::memory_order_release); }
  Word* done() const { return &words_.header()->done; }

  void SetArmed(int slot, bool armed);
  void PublishCaptured(int slot, uint64_t replay, const Status& status, uint64_t generation,
                       int who_rank = -1);
  void CompleteCaptured(int slot) { captured_done(slot)->store(1, std::memory_order_release); }
  Word* captured_done(int slot) const { return &words_.header()->captured[slot].done; }

  void Beat(uint64_t now_ns, uint64_t engine_generation);
  // Before the engine sleeps: sets the flag that makes a push wake `sleep_word()`. Poll once more after it.
  void AnnounceSleep();
  void EndSleep() { ring()->sleeping.store(0, std::memory_order_relaxed); }
  std::atomic<uint32_t>* sleep_word() const { return &ring()->sleeping; }
  // True if an entry is waiting.
  bool HasEntry() const { return ring()->producer.load(std::memory_order_seq_cst) != consumed_; }
  // True if the ring's header claims more entries than the ring has: its client broke the protocol.
  bool Overrun() const { return ring()->producer.load(std::memory_order_relaxed) - consumed_ > entries_; }

  ChannelWords& words() { return words_; }

 private:
  RingHeader* ring() const { return ring_.As<RingHeader>(); }

  Mapping ring_;
  ChannelWords words_;
  uint32_t entries_ = 0;
  uint64_t consumed_ = 0;
};

}  // namespace tandem
