#include "ipc/order_log.h"

#include "ipc/futex.h"

namespace tandem {
namespace {

constexpr uint64_t kLogMagic = 0x54444d4f4c4f4731;  // "TDMOLOG1"
constexpr uint64_t kLapMask = (1u << 12) - 1;

// count 16 | plan 24 | mask 8 | kind 4 | lap 12
uint64_t LapOf(uint64_t position) { return (position / kLogSlots + 1) & kLapMask; }
uint64_t LapOfSlot(uint64_t bits) { return bits >> 52; }

uint64_t Encode(uint64_t position, const LogEntry& entry) {
  return LapOf(position) << 52 | uint64_t{static_cast<uint8_t>(entry.kind)} << 48 |
         uint64_t{entry.mask} << 40 | uint64_t{entry.plan & kLogIdMask} << 16 | entry.count;
}

LogEntry Decode(uint64_t bits) {
  LogEntry entry;
  entry.kind = static_cast<LogKind>((bits >> 48) & 0xf);
  entry.mask = static_cast<uint8_t>(bits >> 40);
  entry.plan = static_cast<uint32_t>(bits >> 16) & kLogIdMask;
  entry.count = static_cast<uint16_t>(bits);
  return entry;
}

}  // namespace

Result<UniqueFd> OrderLog::Create() {
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemfd("tandem-order-log", kSlotsOffset + 8 * kLogSlots));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, sizeof(Header), true));
  mapping.As<Header>()->magic.store(kLogMagic);
  return fd;
}

Result<OrderLog> OrderLog::Map(int fd) {
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, kSlotsOffset + 8 * kLogSlots));
  OrderLog log;
  TANDEM_ASSIGN_OR_RETURN(log.mapping_, Mapping::Map(fd, 0, kSlotsOffset + 8 * kLogSlots, true));
  if (log.header()->magic.load() != kLogMagic) return InvalidArgument("the descriptor is not an order log");
  return log;
}

uint64_t OrderLog::Head() const {
  uint64_t position = header()->head_hint.load(std::memory_order_acquire);
  for (LogEntry entry;;) {
    switch (Read(position, &entry)) {
      case LogRead::kEmpty: return position;
      case LogRead::kEntry: ++position; break;
      case LogRead::kLapped: position = header()->head_hint.load(std::memory_order_acquire); break;
    }
  }
}

LogRead OrderLog::Read(uint64_t position, LogEntry* entry) const {
  uint64_t bits = slot(position)->load(std::memory_order_seq_cst);
  uint64_t lap = LapOf(position);
  if (LapOfSlot(bits) == lap) {
    *entry = Decode(bits);
    return LogRead::kEntry;
  }
  return LapOfSlot(bits) == ((lap - 1) & kLapMask) ? LogRead::kEmpty : LogRead::kLapped;
}

bool OrderLog::TryAppend(uint64_t position, const LogEntry& entry) {
  std::atomic<uint64_t>* word = slot(position);
  uint64_t expected = word->load(std::memory_order_seq_cst);
  if (LapOfSlot(expected) != ((LapOf(position) - 1) & kLapMask)) return false;
  if (!word->compare_exchange_strong(expected, Encode(position, entry), std::memory_order_seq_cst))
    return false;
  // Only a hint: a crash before this line costs the next reader one more step.
  uint64_t hint = header()->head_hint.load(std::memory_order_relaxed);
  while (hint < position + 1 && !header()->head_hint.compare_exchange_weak(hint, position + 1)) {
  }
  Wake(entry);
  return true;
}

void OrderLog::Append(const LogEntry& entry) {
  while (!TryAppend(Head(), entry)) {
  }
}

void OrderLog::Wake(const LogEntry& entry) {
  for (int gpu = 0; gpu < kMaxLogGpus; ++gpu) {
    // Failures and breaks name ranks or groups, not GPUs: they are rare and wake everybody.
    if (entry.kind == LogKind::kStart && (entry.mask & (1u << gpu)) == 0) continue;
    std::atomic<uint32_t>* sleeping = sleep_word(gpu);
    if (sleeping->load(std::memory_order_seq_cst) == 0) continue;
    sleeping->store(0, std::memory_order_relaxed);
    FutexWake(sleeping);
  }
}

void OrderLog::PublishProgress(int gpu, uint64_t read_position, int in_flight) {
  header()->gpus[gpu].progress.store(read_position << 8 | static_cast<uint8_t>(in_flight),
                                     std::memory_order_release);
}

OrderLog::Progress OrderLog::ProgressOf(int gpu) const {
  uint64_t bits = header()->gpus[gpu].progress.load(std::memory_order_acquire);
  return {.read_position = bits >> 8, .in_flight = static_cast<int>(bits & 0xff)};
}

}  // namespace tandem
