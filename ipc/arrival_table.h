// File: arrival_table.h
//
// `ArrivalTable`: the ranks' arrivals at launches. One table a group, in memory that the group's engines and
// tandemd share. Every word has one writer, its rank's engine. An engine writes the digest, then the count,
// and then reads the others' words (sequentially consistent). So when ranks arrive at the same moment, at
// least one of them sees all arrivals.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/process_identity.h"
#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

// Makes a group's table with rows for `max_plans` plans, zeroed and sealed; pages cost memory once they are
// used. INVALID_ARGUMENT unless 1 <= world_size <= 8 and 1 <= max_plans <= 2^20.
Result<UniqueFd> CreateArrivalTable(int world_size, uint32_t max_plans);

// See ArrivalTable::Launched.
inline constexpr uint64_t kUnknownLaunches = ~uint64_t{0};

class ArrivalTable {
 public:
  ArrivalTable() = default;
  // INVALID_ARGUMENT if the descriptor is no arrival table of `world_size`.
  static Result<ArrivalTable> Map(int fd, int world_size);

  uint32_t max_plans() const { return max_plans_; }
  // Rank `rank` has reached launch `count` (from 1) of the plan in row `plan_index`. Launches that were
  // refused or failed before they arrived leave a gap.
  void Arrive(uint32_t plan_index, int rank, uint64_t digest, uint64_t count);
  uint64_t Count(uint32_t plan_index, int rank) const;
  // Valid for the launch that Count() named before the call, until it is decided.
  uint64_t Digest(uint32_t plan_index, int rank) const;

  // Launches of the plan that the rank has made: those that arrived, and those whose stream has not reached
  // them yet. kUnknownLaunches once a graph may launch it. Kept for ordered groups only.
  void SetLaunched(uint32_t plan_index, int rank, uint64_t launches);
  uint64_t Launched(uint32_t plan_index, int rank) const;
  // Counts how often the rank's engine has looked at all its channels.
  void CountLook(int rank);
  uint64_t Looks(int rank) const;

  // The process that is rank `rank`'s engine; pid 0 before it has the group.
  void SetOwner(int rank, const ProcessIdentity& process);
  ProcessIdentity Owner(int rank) const;
  // The group is broken on rank `rank`: all launches of the group that had not ended carry the failure there,
  // and none starts any more. A reader that gets true sees all that the engine wrote before.
  void SetBroken(int rank);
  bool Broken(int rank) const;

  // The last launch number that used the group's bulk area and that this rank has ended.
  void SetBulkEnded(int rank, uint64_t launch_number);
  uint64_t BulkEnded(int rank) const;

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> digest;
    std::atomic<uint64_t> count;
    std::atomic<uint64_t> launched;
  };
  struct alignas(64) RankWords {
    std::atomic<uint64_t> bulk_ended;
    std::atomic<uint64_t> broken;
    std::atomic<uint64_t> owner_start, owner_pid;  // the pid is written last
    std::atomic<uint64_t> looks;
  };
  struct Header {
    std::atomic<uint64_t> magic;
    std::atomic<uint32_t> world_size;
    std::atomic<uint32_t> max_plans;
    RankWords ranks[8];
  };
  static constexpr size_t kRowsOffset = 4096;
  friend Result<UniqueFd> CreateArrivalTable(int world_size, uint32_t max_plans);
  static size_t Bytes(int world_size, uint32_t max_plans) {
    return kRowsOffset + size_t{max_plans} * static_cast<size_t>(world_size) * sizeof(Cell);
  }
  Cell* cell(uint32_t plan_index, int rank) const {
    return mapping_.As<Cell>(kRowsOffset) + size_t{plan_index} * static_cast<size_t>(world_size_) + rank;
  }

  Mapping mapping_;
  int world_size_ = 0;
  uint32_t max_plans_ = 0;
};

}  // namespace tandem
