// File: channel_layout.h
//
// The bytes of a channel: one client stream's way to an engine. Two sealed memfds: the *ring* carries
// launches from the client to the engine, the *words* carry what streams write and wait on, and how launches
// ended. Both are mapped by the client, the engine and tandemd. No side trusts a number that another side can
// write: indexes are clamped, entries are copied out before they are checked, and of `words` the engine reads
// request and doorbells only.
//
// All shared fields are atomics, so that garbage written by a hostile client is a value, never a data race.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/word.h"

namespace tandem {

// Written to the done words of a channel whose engine or daemon is gone: releases every wait below it, since
// streams compare cyclically. Ordinary values stay below kOrdinaryLimit.
inline constexpr uint64_t kReleaseValue = uint64_t{1} << 62;
inline constexpr uint64_t kOrdinaryLimit = uint64_t{1} << 61;

inline constexpr uint32_t kChannelMagic = 0x54514348;  // "TQCH"
inline constexpr uint32_t kChannelVersion = 5;
inline constexpr uint32_t kMaxChannelEntries = 1u << 16;
// An entry's room for bindings: two messages each way between eight ranks.
inline constexpr int kMaxBindings = 28;
inline constexpr int kCapturedSlots = 64;
inline constexpr size_t kStatusTextBytes = 200;
inline constexpr size_t kStatusReasonBytes = 24;  // with its terminating zero: StatusDetail::reason

// A slot's memory in one launch.
struct LaunchBinding {
  uint64_t registration_id = 0;  // 0: not bound (a slot of no bytes)
  uint64_t offset = 0;           // bytes
};

// The request of a ring entry.
enum class EntryKind : uint32_t {
  kLaunch = 0,  // a launch that arrives when the request word reaches `sequence`
  kArm = 1,     // a captured launch: from now on every doorbell of `captured_slot` is a launch; sequence is 0
  kDisarm = 2,  // the last executable graph of `captured_slot` is gone; sequence is 0
};

// One launch. Trivially copyable; 512 bytes on the ring.
struct LaunchEntry {
  uint64_t plan_id = 0;
  uint64_t sequence = 0;          // of the channel: the last launch's + 1
  uint64_t group_generation = 0;  // that the client knows; an older one ends with ABORTED
  uint64_t deadline_ns = 0;       // from the first rank's arrival; 0: the group's
  uint64_t tag_digest = 0;        // of the user's tag; compared across ranks
  EntryKind kind = EntryKind::kLaunch;
  int32_t captured_slot = -1;  // kArm, kDisarm
  uint32_t binding_count = 0;
  uint32_t reserved = 0;
  LaunchBinding bindings[kMaxBindings];
};
inline constexpr size_t kEntryBytes = 512;
inline constexpr size_t kEntryHeadWords = offsetof(LaunchEntry, bindings) / 8;
static_assert(sizeof(LaunchEntry) <= kEntryBytes && sizeof(LaunchEntry) % 8 == 0);
static_assert(offsetof(LaunchEntry, bindings) % 8 == 0);

// Words of an entry that cross the ring. Bindings behind `binding_count` do not: most launches have a few.
// Never more words than the entry has, whatever the count says.
constexpr size_t EntryWords(uint32_t binding_count) {
  const size_t bindings = binding_count < kMaxBindings ? binding_count : kMaxBindings;
  return kEntryHeadWords + bindings * (sizeof(LaunchBinding) / 8);
}
static_assert(EntryWords(kMaxBindings) * 8 == sizeof(LaunchEntry));

// An entry as it lies on the ring.
struct alignas(64) RingSlot {
  std::atomic<uint64_t> words[kEntryBytes / 8];
};
static_assert(sizeof(RingSlot) == kEntryBytes);

struct RingHeader {
  alignas(64) std::atomic<uint32_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> entries;               // a power of two
  alignas(64) std::atomic<uint64_t> producer;  // entries ever pushed
  alignas(64) std::atomic<uint64_t> consumer;  // entries ever taken
  // 1 while the engine sleeps or is about to: who pushes sets it to 0 and wakes this futex.
  alignas(64) std::atomic<uint32_t> sleeping;
};
inline constexpr size_t kRingSlotsOffset = 4096;
static_assert(sizeof(RingHeader) <= kRingSlotsOffset);

// How one launch ended. A sequence lock: `version` is odd while the engine writes.
struct alignas(64) StatusRecord {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> sequence;    // the launch; captured slots count their replays here
  std::atomic<uint64_t> cause;       // the code and what caused it: PackCause
  std::atomic<uint64_t> generation;  // of the group, as the engine knows it
  // Both zero-terminated, and written with failures only.
  std::atomic<uint64_t> reason[kStatusReasonBytes / 8];
  std::atomic<uint64_t> text[kStatusTextBytes / 8];
};
static_assert(sizeof(StatusRecord) == 256 && kStatusReasonBytes % 8 == 0 && kStatusTextBytes % 8 == 0);

// A captured launch's own words. The stream writes done 0 and then doorbell 1, and waits for done >= 1; the
// engine clears the doorbell before it issues done.
struct CapturedWords {
  alignas(64) Word doorbell;
  alignas(64) Word done;
  alignas(64) Word armed;  // 1 from the engine's receipt of kArm to that of kDisarm
  StatusRecord status;
  // The latest replay that failed, numbered among those: a client that looks after many replays must not miss
  // one because a later one went well.
  StatusRecord failure;
};

struct ChannelWordsHeader {
  alignas(64) std::atomic<uint32_t> magic;
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> entries;
  alignas(64) Word request;   // the client's stream: the last launch that it has reached
  alignas(64) Word done;      // the last launch that has ended; who reads it looks at the status record then
  alignas(64) Word failures;  // launches (captured ones too) that ended with a failure: a cheap look for news
  alignas(64) Word released;  // 1 once somebody has ended the channel by kReleaseValue
  Word ended;                 // then: the last launch that had ended by itself before
  alignas(64) Word heartbeat;  // the engine's, CLOCK_MONOTONIC nanoseconds of its last look at the channel
  Word engine_generation;
  StatusRecord closed;  // why the channel was ended, if `released`
  CapturedWords captured[kCapturedSlots];
};
inline constexpr size_t kStatusRecordsOffset = (sizeof(ChannelWordsHeader) + 4095) / 4096 * 4096;

// Bytes of the two memfds for a ring of `entries`.
constexpr size_t RingBytes(uint32_t entries) { return kRingSlotsOffset + size_t{entries} * kEntryBytes; }
constexpr size_t WordsBytes(uint32_t entries) {
  return kStatusRecordsOffset + size_t{entries} * sizeof(StatusRecord);
}

}  // namespace tandem
