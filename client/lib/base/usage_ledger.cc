#include "client/lib/base/usage_ledger.h"

#include <algorithm>

namespace tandem::client {
namespace {

uint64_t& FieldOf(MemoryKind kind, MemoryUsage& usage) {
  switch (kind) {
    case MemoryKind::kSymmetric: return usage.symmetric_bytes;
    case MemoryKind::kWorkspace: return usage.workspace_bytes;
    case MemoryKind::kSignals: return usage.signal_bytes;
    case MemoryKind::kSegment: return usage.segment_bytes;
    case MemoryKind::kPeer: return usage.peer_bytes;
    case MemoryKind::kRegistered: return usage.registered_bytes;
    case MemoryKind::kHost: break;
  }
  return usage.host_bytes;
}

}  // namespace

UsageLedger::Entry UsageLedger::Hold(MemoryKind kind, uint64_t group_id, const void* memory, uint64_t bytes) {
  const Key key{kind, memory, group_id};
  std::lock_guard lock(mutex_);
  Held& held = held_[key];
  held.bytes = std::max(held.bytes, bytes);
  ++held.holders;
  return {shared_from_this(), key};
}

void UsageLedger::Drop(const Key& key) {
  if (born_ != ForkCount()) return;
  std::lock_guard lock(mutex_);
  const auto held = held_.find(key);
  if (--held->second.holders == 0) held_.erase(held);
}

MemoryUsage UsageLedger::OfGroup(uint64_t group_id) const {
  MemoryUsage usage;
  std::lock_guard lock(mutex_);
  for (const auto& [key, held] : held_) {
    if (key.group_id == group_id) FieldOf(key.kind, usage) += held.bytes;
  }
  return usage;
}

MemoryUsage UsageLedger::OfAll() const {
  MemoryUsage usage;
  std::lock_guard lock(mutex_);
  // The groups of one memory stand side by side.
  for (auto each = held_.begin(); each != held_.end();) {
    const Key& first = each->first;
    uint64_t bytes = 0;
    for (; each != held_.end() && each->first.kind == first.kind && each->first.memory == first.memory;
         ++each)
      bytes = std::max(bytes, each->second.bytes);
    FieldOf(first.kind, usage) += bytes;
  }
  return usage;
}

}  // namespace tandem::client
