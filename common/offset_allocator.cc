#include "common/offset_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

namespace tandem {

OffsetAllocator::OffsetAllocator(uint64_t bytes) : capacity_(bytes / kAlignment * kAlignment) {
  if (capacity_ > 0) free_[0] = capacity_;
}

Result<uint64_t> OffsetAllocator::Allocate(uint64_t bytes, uint64_t alignment) {
  if (!std::has_single_bit(alignment)) return InvalidArgument("alignment must be a power of two");
  alignment = std::max(alignment, kAlignment);
  bytes = std::max<uint64_t>(bytes, 1);
  if (bytes <= capacity_) {
    const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [start, length] = *it;
      if (alignment > capacity_) break;
      const uint64_t offset = (start + alignment - 1) / alignment * alignment;
      const uint64_t skipped = offset - start;
      if (skipped > length || length - skipped < rounded) continue;
      free_.erase(it);
      if (skipped > 0) free_[start] = skipped;
      if (length - skipped > rounded) free_[offset + rounded] = length - skipped - rounded;
      blocks_[offset] = rounded;
      used_ += rounded;
      return offset;
    }
  }
  return Status(Code::kResourceExhausted,
                "no free range of " + std::to_string(bytes) + " bytes: " + std::to_string(used_) + " of " +
                    std::to_string(capacity_) + " are in use",
                {.reason = "SEGMENT_FULL",
                 .who = {},
                 .field = {},
                 .limit = static_cast<long long>(capacity_),
                 .usage = static_cast<long long>(used_)});
}

Status OffsetAllocator::Take(uint64_t offset, uint64_t bytes) {
  auto range = free_.upper_bound(offset);
  if (range != free_.begin()) --range;
  const bool fits = range != free_.end() && range->first <= offset && bytes > 0 &&
                    range->second >= offset - range->first &&
                    range->second - (offset - range->first) >= bytes;
  if (!fits || offset % kAlignment != 0 || bytes % kAlignment != 0)
    return InvalidArgument("the block at offset " + std::to_string(offset) + " is not free");
  const auto [start, length] = *range;
  free_.erase(range);
  if (offset > start) free_[start] = offset - start;
  if (start + length > offset + bytes) free_[offset + bytes] = start + length - offset - bytes;
  blocks_[offset] = bytes;
  used_ += bytes;
  return Status::Ok();
}

Status OffsetAllocator::Free(uint64_t offset) {
  auto block = blocks_.find(offset);
  if (block == blocks_.end()) return NotFound("no block at offset " + std::to_string(offset));
  uint64_t start = offset;
  uint64_t length = block->second;
  used_ -= length;
  blocks_.erase(block);
  auto next = free_.lower_bound(start);
  if (next != free_.end() && start + length == next->first) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      previous->second += length;
      return Status::Ok();
    }
  }
  free_[start] = length;
  return Status::Ok();
}

uint64_t OffsetAllocator::BlockBytes(uint64_t offset) const {
  auto block = blocks_.find(offset);
  return block == blocks_.end() ? 0 : block->second;
}

}  // namespace tandem
