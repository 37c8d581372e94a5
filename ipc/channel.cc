#include "ipc/channel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "ipc/futex.h"
#include "ipc/status_record.h"

namespace tandem {
namespace {

struct ReadRecordResult {
  uint64_t sequence = 0;
  LaunchOutcome outcome;
};

ReadRecordResult ReadRecord(const StatusRecord* record) {
  StatusRecordContents read = ReadStatusRecord(record);
  return {read.sequence, {std::move(read.status), read.who_rank, read.generation}};
}

Status CheckEntries(uint32_t entries) {
  if (entries < 2 || entries > kMaxChannelEntries || !std::has_single_bit(entries)) {
    return InvalidArgument("a channel has a power of two of entries from 2 to " +
                           std::to_string(kMaxChannelEntries) + ", not " + std::to_string(entries));
  }
  return Status::Ok();
}

Result<Mapping> MapRing(int fd, uint32_t entries) {
  TANDEM_RETURN_IF_ERROR(CheckEntries(entries));
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, RingBytes(entries)));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd, 0, RingBytes(entries), true));
  const RingHeader* header = mapping.As<RingHeader>();
  if (header->magic.load() != kChannelMagic || header->version.load() != kChannelVersion ||
      header->entries.load() != entries) {
    return InvalidArgument("the descriptor is not a ring of " + std::to_string(entries) + " entries");
  }
  return mapping;
}

}  // namespace

Result<ChannelMemory> CreateChannelMemory(uint32_t entries) {
  TANDEM_RETURN_IF_ERROR(CheckEntries(entries));
  ChannelMemory memory;
  TANDEM_ASSIGN_OR_RETURN(memory.ring, CreateSealedMemfd("tandem-ring", RingBytes(entries)));
  TANDEM_ASSIGN_OR_RETURN(memory.words, CreateSealedMemfd("tandem-words", WordsBytes(entries)));
  TANDEM_ASSIGN_OR_RETURN(Mapping ring, Mapping::Map(memory.ring.get(), 0, sizeof(RingHeader), true));
  TANDEM_ASSIGN_OR_RETURN(Mapping words,
                          Mapping::Map(memory.words.get(), 0, sizeof(ChannelWordsHeader), true));
  auto fill = [entries](auto* header) {
    header->magic.store(kChannelMagic);
    header->version.store(kChannelVersion);
    header->entries.store(entries);
  };
  fill(ring.As<RingHeader>());
  fill(words.As<ChannelWordsHeader>());
  return memory;
}

Result<ChannelWords> ChannelWords::Map(int words_fd, uint32_t entries) {
  TANDEM_RETURN_IF_ERROR(CheckEntries(entries));
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(words_fd, WordsBytes(entries)));
  ChannelWords words;
  TANDEM_ASSIGN_OR_RETURN(words.mapping_, Mapping::Map(words_fd, 0, WordsBytes(entries), true));
  words.entries_ = entries;
  if (words.header()->magic.load() != kChannelMagic || words.header()->version.load() != kChannelVersion) {
    return InvalidArgument("the descriptor is not a channel's words");
  }
  return words;
}

void ChannelWords::Release(const Status& why) {
  ChannelWordsHeader* words = header();
  uint64_t unreleased = 0;
  // 2 marks who writes the reason; 1 publishes it. A second caller must not write over the first one's
  // reason.
  if (words->released.compare_exchange_strong(unreleased, 2, std::memory_order_acq_rel)) {
    WriteStatusRecord(&words->closed, 1, why, 0, -1);
    words->released.store(1, std::memory_order_release);
  }
  // A launch under way has a record that says OK: which ones have earned theirs must stay known.
  uint64_t done = words->done.load(std::memory_order_acquire);
  do {
    uint64_t ended = words->ended.load(std::memory_order_relaxed);
    while (done < kOrdinaryLimit && done > ended && !words->ended.compare_exchange_weak(ended, done)) {
    }
  } while (!words->done.compare_exchange_weak(done, kReleaseValue, std::memory_order_acq_rel));
  for (CapturedWords& captured : words->captured) {
    captured.done.store(kReleaseValue, std::memory_order_release);
  }
}

Status ChannelWords::ClosedStatus() const {
  if (!Released()) return Status::Ok();
  Status why = ReadRecord(&header()->closed).outcome.status;
  // A process that ends the channel flags it before the reason is there, and may die between.
  return why.ok() ? Unavailable("the channel was ended") : why;
}

Result<ChannelProducer> ChannelProducer::Map(int ring_fd, int words_fd, uint32_t entries) {
  ChannelProducer producer;
  TANDEM_ASSIGN_OR_RETURN(producer.ring_, MapRing(ring_fd, entries));
  TANDEM_ASSIGN_OR_RETURN(producer.words_, ChannelWords::Map(words_fd, entries));
  return producer;
}

uint32_t ChannelProducer::Room() const {
  uint64_t in_use = produced_ - ring()->consumer.load(std::memory_order_acquire);
  return in_use >= words_.entries_ ? 0 : static_cast<uint32_t>(words_.entries_ - in_use);
}

Status ChannelProducer::Push(LaunchEntry* entry) {
  if (words_.Released()) {
    return Unavailable("the channel has ended: " + words_.ClosedStatus().message());
  }
  if (Room() == 0) {
    return ResourceExhausted("the channel's ring of " + std::to_string(words_.entries_) + " entries is full");
  }
  RingSlot& slot = ring_.As<RingSlot>(kRingSlotsOffset)[produced_ & (words_.entries_ - 1)];
  const size_t words = EntryWords(entry->binding_count);
  uint64_t copy[kEntryBytes / 8];
  std::memcpy(copy, entry, words * 8);
  for (size_t i = 0; i < words; ++i) slot.words[i].store(copy[i], std::memory_order_relaxed);
  ++produced_;
  // Sequentially consistent, as AnnounceSleep and HasEntry are: either the engine's last look sees this
  // entry, or this look sees its flag.
  ring()->producer.store(produced_, std::memory_order_seq_cst);
  if (ring()->sleeping.load(std::memory_order_seq_cst) != 0) {
    ring()->sleeping.store(0, std::memory_order_relaxed);
    FutexWake(&ring()->sleeping);
  }
  return Status::Ok();
}

Status ChannelProducer::TryPush(LaunchEntry* entry) {
  entry->kind = EntryKind::kLaunch;
  entry->captured_slot = -1;
  entry->sequence = next_sequence_;
  TANDEM_RETURN_IF_ERROR(Push(entry));
  ++next_sequence_;
  return Status::Ok();
}

LaunchOutcome ChannelProducer::Outcome(uint64_t sequence) const {
  ReadRecordResult read = ReadRecord(words_.record(sequence));
  if (read.sequence == sequence) {
    // The OK is written before the launch runs. A channel that was ended meanwhile has ended it too.
    const bool cut_short =
        words_.Released() && sequence > words_.header()->ended.load(std::memory_order_acquire);
    if (cut_short && read.outcome.status.ok()) read.outcome.status = words_.ClosedStatus().WithStarted(true);
    return read.outcome;
  }
  LaunchOutcome outcome;
  if (words_.Released()) {
    outcome.status = words_.ClosedStatus();
    // Engines start a launch once all ranks have arrived. An engine that is gone cannot see a later arrival.
    // If this rank had arrived, a peer may have started the launch although this rank's engine had not.
    const bool arrived = request()->load(std::memory_order_acquire) >= sequence;
    const bool engine_gone = outcome.status.code() == Code::kAborted;
    outcome.status =
        outcome.status.WithStarted(engine_gone && !arrived ? std::optional(false) : std::nullopt);
  } else if (read.sequence < sequence) {
    outcome.status =
        FailedPrecondition("launch " + std::to_string(sequence) + " of the channel has not ended");
  } else {
    outcome.status = Status(Code::kDataLoss, "the outcome of launch " + std::to_string(sequence) +
                                                 " of the channel has been overwritten by a later one's");
  }
  return outcome;
}

Result<int> ChannelProducer::Arm(LaunchEntry* entry) {
  for (int slot = 0; slot < kCapturedSlots; ++slot) {
    CapturedWords& captured = words_.header()->captured[slot];
    if (live_slots_[slot] || captured.armed.load(std::memory_order_acquire) != 0) continue;
    captured.doorbell.store(0, std::memory_order_relaxed);
    captured.done.store(0, std::memory_order_relaxed);
    entry->kind = EntryKind::kArm;
    entry->captured_slot = slot;
    entry->sequence = 0;
    TANDEM_RETURN_IF_ERROR(Push(entry));
    live_slots_[slot] = true;
    return slot;
  }
  return ResourceExhausted("all " + std::to_string(kCapturedSlots) +
                           " captured launches of the channel are live");
}

Status ChannelProducer::Disarm(int slot) {
  if (slot < 0 || slot >= kCapturedSlots || !live_slots_[slot]) return NotFound("no such captured launch");
  LaunchEntry entry;
  entry.kind = EntryKind::kDisarm;
  entry.captured_slot = slot;
  TANDEM_RETURN_IF_ERROR(Push(&entry));
  // Not `armed` yet: the engine may still have the kArm before it, and clears the word when it takes this
  // entry.
  live_slots_[slot] = false;
  return Status::Ok();
}

LaunchOutcome ChannelProducer::CapturedOutcome(int slot) const {
  ReadRecordResult read = ReadRecord(&words_.header()->captured[slot].status);
  if (words_.Released() && read.outcome.status.ok()) read.outcome.status = words_.ClosedStatus();
  return read.outcome;
}

uint64_t ChannelProducer::CapturedFailures(int slot) const {
  return words_.header()->captured[slot].failure.sequence.load(std::memory_order_acquire);
}

LaunchOutcome ChannelProducer::CapturedFailure(int slot, uint64_t* number) const {
  ReadRecordResult read = ReadRecord(&words_.header()->captured[slot].failure);
  *number = read.sequence;
  return read.outcome;
}

Result<ChannelConsumer> ChannelConsumer::Map(int ring_fd, int words_fd, uint32_t entries) {
  ChannelConsumer consumer;
  TANDEM_ASSIGN_OR_RETURN(consumer.ring_, MapRing(ring_fd, entries));
  TANDEM_ASSIGN_OR_RETURN(consumer.words_, ChannelWords::Map(words_fd, entries));
  consumer.entries_ = entries;
  return consumer;
}

bool ChannelConsumer::Poll(LaunchEntry* entry) {
  // Only equality with our own count matters: a producer index that lies yields garbage entries, which their
  // sequence gives away, never an index outside of the ring.
  if (!HasEntry()) return false;
  RingSlot& slot = ring_.As<RingSlot>(kRingSlotsOffset)[consumed_ & (entries_ - 1)];
  uint64_t copy[kEntryBytes / 8];
  auto take = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) copy[i] = slot.words[i].load(std::memory_order_relaxed);
    std::memcpy(reinterpret_cast<std::byte*>(entry) + from * 8, copy + from, (to - from) * 8);
  };
  take(0, kEntryHeadWords);
  take(kEntryHeadWords, EntryWords(entry->binding_count));
  ++consumed_;
  ring()->consumer.store(consumed_, std::memory_order_release);
  return true;
}

bool ChannelConsumer::TakeDoorbell(int slot) {
  Word& doorbell = words_.header()->captured[slot].doorbell;
  if (doorbell.load(std::memory_order_acquire) == 0) return false;
  doorbell.store(0, std::memory_order_relaxed);
  return true;
}

void ChannelConsumer::PublishStatus(uint64_t sequence, const Status& status, uint64_t generation,
                                    int who_rank) {
  WriteStatusRecord(words_.record(sequence), sequence, status, generation, who_rank);
  if (!status.ok()) words_.header()->failures.fetch_add(1, std::memory_order_release);
}

void ChannelConsumer::PublishOk(uint64_t sequence, uint64_t generation) {
  WriteStatusRecord(words_.record(sequence), sequence, Status::Ok(), generation, -1);
}

void ChannelConsumer::SetArmed(int slot, bool armed) {
  words_.header()->captured[slot].armed.store(armed ? 1 : 0, std::memory_order_release);
}

void ChannelConsumer::PublishCaptured(int slot, uint64_t replay, const Status& status, uint64_t generation,
                                      int who_rank) {
  CapturedWords& captured = words_.header()->captured[slot];
  WriteStatusRecord(&captured.status, replay, status, generation, who_rank);
  if (status.ok()) return;
  const uint64_t failed = captured.failure.sequence.load(std::memory_order_relaxed);
  WriteStatusRecord(&captured.failure, failed + 1, status, generation, who_rank);
  words_.header()->failures.fetch_add(1, std::memory_order_release);
}

void ChannelConsumer::Beat(uint64_t now_ns, uint64_t engine_generation) {
  words_.header()->heartbeat.store(now_ns, std::memory_order_relaxed);
  words_.header()->engine_generation.store(engine_generation, std::memory_order_relaxed);
}

void ChannelConsumer::AnnounceSleep() { ring()->sleeping.store(1, std::memory_order_seq_cst); }

}  // namespace tandem
