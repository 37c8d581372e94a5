#include "ipc/status_record.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {
namespace {

// A text of at most N - 1 bytes, zero-terminated, into N bytes of words.
template <size_t kWords>
void WriteText(std::atomic<uint64_t> (&words)[kWords], std::string_view text) {
  char buffer[8 * kWords] = {};
  std::memcpy(buffer, text.data(), std::min(text.size(), sizeof(buffer) - 1));
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, buffer + 8 * i, 8);
    words[i].store(word, std::memory_order_release);
  }
}

// The bytes of such a text and what is behind its zero, up to the last word's.
template <size_t kWords>
std::string ReadBytes(const std::atomic<uint64_t> (&words)[kWords]) {
  char buffer[8 * kWords + 1] = {};
  for (size_t i = 0; i < kWords; ++i) {
    const uint64_t word = words[i].load(std::memory_order_acquire);
    std::memcpy(buffer + 8 * i, &word, 8);
  }
  return std::string(buffer, 8 * kWords);
}

// Reads such a text; ends at the last byte whatever is there.
template <size_t kWords>
std::string ReadText(const std::atomic<uint64_t> (&words)[kWords]) {
  return ReadBytes(words).c_str();
}

// The reason, and behind its zero the field's name where both fit.
std::string PackReason(const StatusDetail& detail) {
  if (detail.reason.size() >= kStatusReasonBytes) return {};
  std::string packed = detail.reason;
  if (!detail.field.empty() && packed.size() + 1 + detail.field.size() < kStatusReasonBytes)
    packed += '\0' + detail.field;
  return packed;
}

void UnpackReason(const std::string& packed, StatusDetail* detail) {
  detail->reason = packed.c_str();
  const size_t field = std::min(detail->reason.size() + 1, packed.size());
  detail->field = packed.substr(field).c_str();
}

// A status's numbers in one word: bits 0-7 the code, 8-15 the ranks that caused it, 16-23 the GPU + 1 (0:
// none), 24-25 started (0: not known, 1: no, 2: yes), 32-63 the process.
uint64_t PackCause(const Status& status, int who_rank) {
  const StatusDetail& detail = status.detail();
  uint64_t ranks = who_rank >= 0 && who_rank < 8 ? uint64_t{1} << who_rank : 0;
  for (uint32_t rank : detail.ranks) ranks |= rank < 8 ? uint64_t{1} << rank : 0;
  const uint64_t gpu = detail.gpu >= 0 && detail.gpu < 255 ? static_cast<uint64_t>(detail.gpu) + 1 : 0;
  const uint64_t started = !detail.started.has_value() ? 0 : *detail.started ? 2 : 1;
  const uint64_t pid = detail.pid > 0 && detail.pid <= UINT32_MAX ? static_cast<uint64_t>(detail.pid) : 0;
  return (static_cast<uint64_t>(status.code()) & 0xff) | ranks << 8 | gpu << 16 | started << 24 | pid << 32;
}

Code UnpackCause(uint64_t cause, StatusDetail* detail) {
  for (uint32_t rank = 0; rank < 8; ++rank) {
    if ((cause >> (8 + rank) & 1) != 0) detail->ranks.push_back(rank);
  }
  detail->gpu = static_cast<int32_t>(cause >> 16 & 0xff) - 1;
  if (const uint64_t started = cause >> 24 & 3; started == 1 || started == 2) detail->started = started == 2;
  detail->pid = static_cast<int64_t>(cause >> 32);
  if (!detail->ranks.empty()) {
    detail->who = detail->ranks.size() == 1 ? "rank " : "ranks ";
    for (uint32_t rank : detail->ranks) {
      detail->who += (rank == detail->ranks.front() ? "" : ", ") + std::to_string(rank);
    }
  } else if (detail->gpu >= 0) {
    detail->who = "gpu " + std::to_string(detail->gpu);
  } else if (detail->pid > 0) {
    detail->who = "pid " + std::to_string(detail->pid);
  }
  return static_cast<Code>(cause & 0xff);
}

}  // namespace

void WriteStatusRecord(StatusRecord* record, uint64_t sequence, const Status& status, uint64_t generation,
                       int who_rank) {
  uint64_t version = record->version.load(std::memory_order_relaxed) | 1;
  record->version.store(version, std::memory_order_relaxed);
  // Release stores keep the fields behind the odd version; no fences, which ThreadSanitizer does not know.
  record->sequence.store(sequence, std::memory_order_release);
  record->cause.store(PackCause(status, who_rank), std::memory_order_release);
  record->generation.store(generation, std::memory_order_release);
  if (!status.ok()) {
    WriteText(record->reason, PackReason(status.detail()));
    WriteText(record->text, status.message());
  }
  record->version.store(version + 1, std::memory_order_release);
}

StatusRecordContents ReadStatusRecord(const StatusRecord* record) {
  StatusRecordContents result;
  StatusDetail detail;
  std::string text;
  uint64_t cause = 0;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    uint64_t before = record->version.load(std::memory_order_acquire);
    result.sequence = record->sequence.load(std::memory_order_acquire);
    cause = record->cause.load(std::memory_order_acquire);
    result.generation = record->generation.load(std::memory_order_acquire);
    if ((cause & 0xff) != 0) {
      UnpackReason(ReadBytes(record->reason), &detail);
      text = ReadText(record->text);
    }
    if ((before & 1) == 0 && record->version.load(std::memory_order_relaxed) == before) break;
  }
  const Code code = UnpackCause(cause, &detail);
  if (!detail.ranks.empty()) result.who_rank = static_cast<int>(detail.ranks.front());
  if (code != Code::kOk) {
    result.status = Status(code, std::move(text), std::move(detail));
  }
  return result;
}

}  // namespace tandem
