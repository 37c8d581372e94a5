// File: arrival_table.h
//
// Who has arrived at which launch: one table a group, in memory that the group's engines and tandemd share.
// Every word has one writer, the engine of its rank. An engine writes the digest, then the count, and then
// reads the others' (sequentially consistent), so that of the ranks that arrive at the same moment at least
// one sees all of them.
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
  // Valid for the launch that Count() or Offered() named before the call, until it is decided.
  uint64_t Digest(uint32_t plan_index, int rank) const;

  // Parking (engine/launch/parking.cc). Each word has one writer like the rest and only grows, but for the
  // offer's, which falls to 0 when it is taken back. Rank `rank` will arrive at launch `count` next, and
  // would park it.
  void Offer(uint32_t plan_index, int rank, uint64_t digest, uint64_t count);
  // The offer is taken back: for who gets the plan later. Who has it is told by the order log.
  void Revoke(uint32_t plan_index, int rank);
  uint64_t Offered(uint32_t plan_index, int rank) const;
  // Its lane will not pass launch `count`, parked, before all ranks have acknowledged that it is taken back.
  void SetHeld(uint32_t plan_index, int rank, uint64_t count);
  uint64_t Held(uint32_t plan_index, int rank) const;
  void SetAcknowledged(uint32_t plan_index, int rank, uint64_t count);
  uint64_t Acknowledged(uint32_t plan_index, int rank) const;
  // The process that is rank `rank`'s engine; pid 0 before it has the group.
  void SetOwner(int rank, const ProcessIdentity& process);
  ProcessIdentity Owner(int rank) const;
  // The group is broken on rank `rank`: all its launches that had not ended carry the failure, and it starts
  // no more (stage 1); and those that are parked and have not begun will do nothing (2). What it wrote before
  // is visible to who reads true.
  void SetBroken(int rank, int stage);
  bool Broken(int rank, int stage) const;

  // The last epoch that used the group's bulk area and that this rank has ended.
  void SetBulkEnded(int rank, uint64_t epoch);
  uint64_t BulkEnded(int rank) const;

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> digest;
    std::atomic<uint64_t> count;
    std::atomic<uint64_t> offered, held, acknowledged;
  };
  struct alignas(64) RankWords {
    std::atomic<uint64_t> bulk_ended;
    std::atomic<uint64_t> broken;                  // the stage
    std::atomic<uint64_t> owner_start, owner_pid;  // the pid is written last
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
