// File: tallies.h
//
// How many collectives of torch.distributed this process has called, and which of them Tandem has run. Knows
// nothing of torch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem::torch_distributed {

enum class Collective : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast };
inline constexpr size_t kCollectives = 5;
inline constexpr std::array<const char*, kCollectives> kCollectiveNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};

// Thread-safe.
class Tallies {
 public:
  // A call. bytes: of the larger of input and output. reason: why the process group's own backend has run it;
  // empty where Tandem has.
  void Add(Collective op, uint64_t bytes, std::string_view reason);
  // One line a count: op, calls, bytes, reason ("": taken), with tabs between.
  std::string Lines() const;

 private:
  struct Count {
    uint64_t calls = 0, bytes = 0;
  };
  using ByReason = std::map<std::string, Count, std::less<>>;

  mutable std::mutex mutex_;
  std::array<ByReason, kCollectives> counts_;  // guarded by mutex_; "": taken
};

// The counts of this process. They are never destroyed.
Tallies& TheTallies();

}  // namespace tandem::torch_distributed
