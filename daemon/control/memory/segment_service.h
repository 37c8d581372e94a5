// File: segment_service.h
//
// `SegmentService`: makes, maps and removes the segments of groups.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "daemon/control/base/waiter.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. `core` outlives it.
class SegmentService {
 public:
  explicit SegmentService(ControlCore& core) : core_(core) {}

  // Waits for the engines of the group's GPUs. DEADLINE_EXCEEDED, reason ENGINE_DOWN; UNAVAILABLE with the
  // cure if one of them is held down; the group's own status once it is over.
  Status AwaitEngines(RegistryLock& lock, const GroupRecord& group, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // A new set, of at least `bytes` on each GPU, charged to the group's payer and mapped by all its engines.
  // `in_place_of` is removed once the engines are there, before the new set is charged.
  // `for_clients`: each segment is mapped by the engine that makes it and by no other, and a restart does not
  // give it to the next engine: tandemd's descriptor keeps the memory.
  Result<std::shared_ptr<SegmentSet>> MakeSet(GroupRecord& group, uint64_t bytes, const std::string& purpose,
                                              const Waiter& waiter,
                                              std::shared_ptr<SegmentSet>* in_place_of = nullptr,
                                              bool for_clients = false) TANDEM_EXCLUDES(registry_mutex);
  // Makes the group's engines map a rank's segment that they do not have yet.
  void MapSet(SegmentSet& set, size_t rank, const GroupRecord& group,
              const std::shared_ptr<CommandBatch>& batch) TANDEM_REQUIRES(registry_mutex);
  void RemoveSet(const std::shared_ptr<SegmentSet>& set) TANDEM_REQUIRES(registry_mutex);
  // Gives the memory of a set back and keeps its ids and blocks, until MakeMemory. Nothing for one without
  // memory. Members' mappings live on.
  void DropMemory(SegmentSet& set) TANDEM_REQUIRES(registry_mutex);
  // Makes zeroed memory for a set whose memory was dropped, and charges it, as MakeSet. Nothing for one with
  // memory. After an error the set is without.
  Status MakeMemory(GroupRecord& group, const std::shared_ptr<SegmentSet>& set, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Removes a set whose group has ended and that has no block left.
  void DropSetIfUnused(const std::shared_ptr<SegmentSet>& set) TANDEM_REQUIRES(registry_mutex);
  // Zeroes a block on every rank, so that its next owner does not see the old contents.
  void ClearBlock(const SegmentSet& set, uint64_t offset, uint64_t bytes) TANDEM_REQUIRES(registry_mutex);
  // Sends all segments of a new engine that its GPU had mapped.
  void SendAgain(int gpu) TANDEM_REQUIRES(registry_mutex);

 private:
  // The descriptors that engines return. Shared with the mailboxes, which may outlive a waiter that gives up.
  struct Making;
  // Charges a set that has ids, and asks its engines for memory.
  Result<std::shared_ptr<Making>> BeginMemory(SegmentSet& set) TANDEM_REQUIRES(registry_mutex);
  // Waits for it, and maps it as `group` needs it. After an error the caller drops the memory.
  Status EndMemory(Making& making, const GroupRecord& group, const std::shared_ptr<SegmentSet>& set,
                   const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);

  ControlCore& core_;
};

}  // namespace tandem::daemon
