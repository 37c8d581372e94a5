#include "client/torch/memory_pool.h"

namespace tandem::torch_ops {

void MemoryPool::AddArena(int device, std::byte* base, size_t bytes) {
  std::lock_guard lock(mutex_);
  arenas_.push_back({device, base, bytes, OffsetAllocator(bytes)});
}

std::byte* MemoryPool::Allocate(int device, size_t bytes) {
  std::lock_guard lock(mutex_);
  for (Arena& arena : arenas_) {
    if (arena.device != device) continue;
    Result<uint64_t> offset = arena.pieces.Allocate(bytes, kAlignment);
    if (offset.ok()) return arena.base + *offset;
  }
  return nullptr;
}

void MemoryPool::Free(std::byte* piece) {
  std::lock_guard lock(mutex_);
  for (Arena& arena : arenas_) {
    if (piece < arena.base || piece >= arena.base + arena.bytes) continue;
    (void)arena.pieces.Free(static_cast<uint64_t>(piece - arena.base));
  }
}

}  // namespace tandem::torch_ops
