// File: offset_allocator.h
//
// `OffsetAllocator`: first-fit sub-allocation of one range of offsets, with coalescing. It knows offsets
// only, no memory: the same instance serves a segment that exists once per rank, so that a block lies at the
// same offset on all of them.
#pragma once

#include <cstdint>
#include <map>

#include "tandem/status.h"

namespace tandem {

class OffsetAllocator {
 public:
  static constexpr uint64_t kAlignment = 256;

  // A range of `bytes` (rounded down to kAlignment), all free. Not thread-safe.
  explicit OffsetAllocator(uint64_t bytes);

  // The lowest free offset that fits `bytes` (0 counts as 1), a multiple of `alignment` (a power of two,
  // raised to kAlignment). RESOURCE_EXHAUSTED if nothing fits; INVALID_ARGUMENT for a bad alignment.
  Result<uint64_t> Allocate(uint64_t bytes, uint64_t alignment = kAlignment);

  // Takes a block that an earlier allocator of the same range had. INVALID_ARGUMENT if it is not free.
  Status Take(uint64_t offset, uint64_t bytes);

  // Frees a block that Allocate returned; NOT_FOUND (and no change) for any other offset.
  Status Free(uint64_t offset);

  // The bytes of the block at `offset`, rounded as allocated; 0 if there is none.
  uint64_t BlockBytes(uint64_t offset) const;

  // All blocks: offset and bytes.
  const std::map<uint64_t, uint64_t>& blocks() const { return blocks_; }
  uint64_t capacity() const { return capacity_; }
  uint64_t used() const { return used_; }
  bool empty() const { return blocks_.empty(); }
  // The number of free ranges: 1 when nothing is allocated.
  size_t free_ranges() const { return free_.size(); }

 private:
  uint64_t capacity_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> free_;    // offset -> bytes; no two adjacent
  std::map<uint64_t, uint64_t> blocks_;  // offset -> bytes
};

}  // namespace tandem
