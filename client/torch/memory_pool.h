// File: memory_pool.h
//
// Pieces of symmetric memory for torch's caching allocator. Ranks that ask for the same pieces in the same
// order get them at the same offsets.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>

#include "common/offset_allocator.h"

namespace tandem::torch_ops {

// Thread-safe.
class MemoryPool {
 public:
  static constexpr uint64_t kAlignment = 512;  // what torch gives its tensors

  // [base, base + bytes) on the GPU `device` is the pool's from now on.
  void AddArena(int device, std::byte* base, size_t bytes);
  // A piece of the first arena of the device that has room; null if none has.
  std::byte* Allocate(int device, size_t bytes);
  // Does nothing with what is no piece.
  void Free(std::byte* piece);

 private:
  struct Arena {
    int device = 0;
    std::byte* base = nullptr;
    size_t bytes = 0;
    OffsetAllocator pieces;
  };
  std::mutex mutex_;
  std::deque<Arena> arenas_;
};

}  // namespace tandem::torch_ops
