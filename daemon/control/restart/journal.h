// File: journal.h
//
// `Journal`: a table of named records in a memfd that outlives tandemd, since engines hold it
// (docs/restart.md). Each change is appended; a record that `kill -9` has cut short is not read, nor what
// follows it. Outdated records are dropped by an append of those that hold, and one 8-byte store that moves
// the beginning.
//
// Thread rule: not thread-safe; the registry's mutex guards it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

class Journal {
 public:
  // A new one, empty.
  static Result<UniqueFd> Create();
  // Reads what holds, and goes on behind it. DATA_LOSS if it is no journal, or was given up.
  static Result<Journal> Open(UniqueFd fd);

  // Does nothing if the record is the same already.
  void Put(const std::string& key, std::string_view value);
  void Erase(const std::string& key);
  // The records as they were read; once.
  std::map<std::string, std::string> TakeRecords() { return std::move(read_); }
  // The record, read back; empty if there is none.
  std::string Get(const std::string& key) const;
  size_t size() const { return live_.size(); }
  std::map<std::string, uint64_t> Digests() const;
  // Not OK once a write has failed: then no tandemd can open it any more.
  const Status& status() const { return status_; }
  uint64_t bytes() const { return end_ - begin_; }

 private:
  struct Place {
    uint64_t offset = 0;  // of the value
    uint64_t bytes = 0;
    uint64_t digest = 0;
  };
  Journal() = default;
  // One record at `end_`; where its value lies.
  Place Append(const std::string& key, std::string_view value, bool erased);
  void Read();
  void Compact();
  void WriteAt(uint64_t offset, const void* data, size_t bytes);
  void Fail(const std::string& what, int error);

  UniqueFd fd_;
  Mapping header_;
  uint64_t begin_ = 0, end_ = 0, live_bytes_ = 0;
  std::map<std::string, Place> live_;
  std::map<std::string, std::string> read_;
  Status status_;
};

}  // namespace tandem::daemon
