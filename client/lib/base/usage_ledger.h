// File: usage_ledger.h
//
// `UsageLedger`: what a session's handles, plans and graphs hold of Tandem's memory. Each holder has an entry
// for as long as it holds the memory; memory with several holders counts once.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "client/lib/base/fork_guard.h"
#include "tandem/client.h"

namespace tandem::client {

// The fields of MemoryUsage that entries are counted in.
enum class MemoryKind { kSymmetric, kWorkspace, kSignals, kSegment, kPeer, kRegistered, kHost };

// Thread-safe. Entries keep it alive.
class UsageLedger : public std::enable_shared_from_this<UsageLedger> {
 public:
  // Movable. An empty entry counts nothing. In a forked child its end does nothing: a thread may have held the
  // lock at the fork.
  class Entry;

  // `group_id` 0: no group's. `memory` names what is held: its first byte, or its mapping.
  Entry Hold(MemoryKind kind, uint64_t group_id, const void* memory, uint64_t bytes);
  MemoryUsage OfGroup(uint64_t group_id) const;
  // Counts all groups and memory of none. Memory that groups share counts once.
  MemoryUsage OfAll() const;

 private:
  struct Key {
    MemoryKind kind = MemoryKind::kHost;
    const void* memory = nullptr;
    uint64_t group_id = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Held {
    uint64_t bytes = 0;
    int holders = 0;
  };
  void Drop(const Key& key);

  const uint64_t born_ = ForkCount();
  mutable std::mutex mutex_;
  std::map<Key, Held> held_;  // guarded
};

class UsageLedger::Entry {
 public:
  Entry() = default;
  Entry(Entry&& other) noexcept : ledger_(std::exchange(other.ledger_, nullptr)), key_(other.key_) {}
  Entry& operator=(Entry&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(key_, other.key_);
    return *this;
  }
  ~Entry() {
    if (ledger_ != nullptr) ledger_->Drop(key_);
  }

 private:
  friend class UsageLedger;
  Entry(std::shared_ptr<UsageLedger> ledger, const Key& key) : ledger_(std::move(ledger)), key_(key) {}

  std::shared_ptr<UsageLedger> ledger_;
  Key key_;
};

}  // namespace tandem::client
