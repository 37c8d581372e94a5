// File: order_log.h
//
// The node-wide order in which programs start. The log has 2^20 slots of 64 bits in shared memory. Every
// engine reads all of them in order and starts its programs in that order, hence alike on all GPUs: programs
// of two groups over the same GPUs cannot wait for each other crosswise.
//
// An entry {lap, kind, mask, plan, count} is claimed and published by one compare-and-swap, so that a crash
// at any moment leaves no half entry. Position p lies in slot p mod 2^20 and carries lap p / 2^20 + 1 (mod
// 2^12). An engine reads every entry before it appends: the first entry for a launch decides it. docs/model
// checks this protocol.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

inline constexpr uint64_t kLogSlots = uint64_t{1} << 20;
inline constexpr int kMaxLogGpus = 8;
// The bits of a plan's or group's id that an entry keeps.
inline constexpr uint32_t kLogIdMask = (1u << 24) - 1;

enum class LogKind : uint8_t {
  kStart = 1,         // all ranks have arrived: mask is the group's GPUs
  kFailDeadline = 2,  // mask is the ranks that had not arrived
  kFailMismatch = 3,  // digests differ: mask is the ranks that differ from the lowest
  kFailRefused = 4,   // mask is the rank whose launch was refused
  kFailOverlap = 5,   // mask is the rank that launched again before the plan's previous launch was done
  kFailDesync = 7,    // mask is the ranks that have made another call instead
  kStall = 8,         // as kBreak, but until a renewal; mask is the rank that renews
  kBreak = 6,  // the group `plan` (low 24 bits of its id) of generation `count` starts nothing any more
};

struct LogEntry {
  LogKind kind = LogKind::kStart;
  uint8_t mask = 0;    // GPUs or ranks, by kind
  uint32_t plan = 0;   // low 24 bits of the plan's id, or of the group's (kBreak, kStall)
  uint16_t count = 0;  // low 16 bits of the plan's launch number, or of the group's generation
  bool operator==(const LogEntry&) const = default;
};

enum class LogRead { kEmpty, kEntry, kLapped };

// One process's view. Thread-safe: all state is in the shared memory.
class OrderLog {
 public:
  // Makes the log's memory (8 MiB, sealed).
  static Result<UniqueFd> Create();
  static Result<OrderLog> Map(int fd);
  OrderLog() = default;

  // The first position that nobody has appended to: where a new engine begins to read.
  uint64_t Head() const;
  // Reads position `position`; kLapped if it has been overwritten meanwhile.
  LogRead Read(uint64_t position, LogEntry* entry) const;
  // Appends at `position`, which the caller has seen empty after reading everything before it. False if
  // somebody else was first: read that entry, decide again. Wakes the sleeping engines that it concerns.
  bool TryAppend(uint64_t position, const LogEntry& entry);
  // An append at the head: for kBreak only, whose meaning does not depend on earlier entries.
  void Append(const LogEntry& entry);

  // Publishes the progress of engine `gpu`, for the others' admission: it has read all entries before
  // `read_position`, and `in_flight` of the engine's programs have started and not ended.
  void PublishProgress(int gpu, uint64_t read_position, int in_flight);
  struct Progress {
    uint64_t read_position = 0;
    int in_flight = 0;
  };
  Progress ProgressOf(int gpu) const;

  // The futex word that an append sets to 0 and wakes, if it is 1.
  std::atomic<uint32_t>* sleep_word(int gpu) const { return &header()->gpus[gpu].sleeping; }

 private:
  struct GpuWords {
    alignas(64) std::atomic<uint64_t> progress;  // read_position << 8 | in_flight
    alignas(64) std::atomic<uint32_t> sleeping;
  };
  struct Header {
    std::atomic<uint64_t> magic;
    alignas(64) std::atomic<uint64_t> head_hint;  // some position up to which the log is full
    GpuWords gpus[kMaxLogGpus];
  };
  static constexpr size_t kSlotsOffset = 4096;
  static_assert(sizeof(Header) <= kSlotsOffset);

  Header* header() const { return mapping_.As<Header>(); }
  std::atomic<uint64_t>* slot(uint64_t position) const {
    return mapping_.As<std::atomic<uint64_t>>(kSlotsOffset) + (position & (kLogSlots - 1));
  }
  void Wake(const LogEntry& entry);

  Mapping mapping_;
};

}  // namespace tandem
