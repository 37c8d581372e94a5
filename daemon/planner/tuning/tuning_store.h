// File: tuning_store.h
//
// The tuning table that a tandemd chooses by: the shipped tables, and over them what was measured on this
// node, which is kept in the state directory.
//
// Thread rule: every function may be called from any thread. A snapshot never changes; plans are made with
// one, so that all ranks of a plan are served by the same table.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/planner/tuning/tuning_file.h"
#include "daemon/planner/tuning/tuning_table.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::daemon {

// A problem that a plan was made for, and for which no measured time decides.
struct WantedTuning {
  plan::TuningEntry entry;             // key and shape
  OpRequest request;                   // of rank 0
  std::vector<std::string> gpu_uuids;  // of the first group that wanted it, in rank order
  uint64_t plans = 1;                  // so many were made
};
// Further ones are not remembered.
inline constexpr size_t kMaxWantedTuning = 256;

class TuningStore {
 public:
  // Reads `state_file` and each *.toml of `shipped_dir` in the order of their names; either may be missing.
  // A file that cannot be used is left out as a whole; refused() names it. The state file is set aside then,
  // as "….refused".
  TuningStore(std::string state_file, const std::string& shipped_dir);

  std::shared_ptr<const plan::TuningTable> Snapshot() const;
  // One line a file that was there and cannot be used: its path and why.
  std::vector<std::string> refused() const;
  const std::string& state_file() const { return state_file_; }

  // Takes a checked entry over the others and writes the state file, of `most` bytes; on failure the table is
  // as before.
  Status Put(plan::TuningEntry entry, size_t most = kMaxTuningFile);
  // Takes an entry, or all, out of what was measured here; shipped ones appear again from under them. How
  // many. NOT_FOUND; FAILED_PRECONDITION for an entry that is only in a shipped file.
  Result<size_t> Forget(const std::string& id);
  Result<size_t> ForgetAll();

  // Remembers what would have been looked up, while this tandemd runs, until there is an entry that holds for
  // it.
  void Want(WantedTuning wanted);
  // Problems of most plans come first.
  std::vector<WantedTuning> Wanted() const;

 private:
  Status ReplaceLocked(plan::TuningTable own, size_t most = kMaxTuningFile);
  // Renames the state file if it was refused and is there still.
  Status SetAside();

  const std::string state_file_;
  mutable std::mutex mutex_;
  plan::TuningTable shipped_, own_;
  std::shared_ptr<const plan::TuningTable> merged_;
  std::vector<std::string> refused_;
  std::vector<WantedTuning> wanted_;
  bool own_refused_ = false;  // the state file that is there
};

}  // namespace tandem::daemon
