// File: tallies.h
//
// How many collectives of NCCL this process has called, and which of them Tandem has run. With TANDEM_REPORT=1
// a line at the process's end has the counts.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem::nccl {

// Thread-safe.
class CallTallies {
 public:
  // A call. reason: why NCCL has run it; empty where Tandem has.
  void Add(std::string_view reason);
  // "ran 2 of 3 collectives of NCCL; 1 not, since …": the most frequent reason is first. Empty: no calls.
  std::string Line() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t, std::less<>> by_reason_;  // guarded by mutex_; "": taken
};

// The counts of this process. They are never destroyed.
CallTallies& TheTallies();

}  // namespace tandem::nccl
