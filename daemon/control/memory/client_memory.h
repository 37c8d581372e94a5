// File: client_memory.h
//
// `ClientMemoryService`: the memory of client-placed plans (docs/client-placement.md). A group has separate
// signal words for them, one workspace with both halves and the bulk area, and a verdict page for each
// member. Engines make the segments; members map them.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/control/base/waiter.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class ClientMemoryService {
 public:
  ClientMemoryService(ControlCore& core, SegmentService& segments) : core_(core), segments_(segments) {}

  // Makes what a plan needs that uses `half_bytes` of each half and `bulk_bytes` of the bulk area, and names
  // it in `plan`. The caller holds the group's `work`. A plan keeps the workspace that it was made with. Two
  // plans may have different ones: launches of different workspaces share no byte.
  Status Provide(GroupRecord& group, uint64_t half_bytes, uint64_t bulk_bytes, const Waiter& waiter,
                 PlanRecord::InClient* plan) TANDEM_EXCLUDES(registry_mutex);
  // Writes what `rank` needs of `plan` into `message`, and returns the descriptors in the message's order.
  std::vector<SharedFd> Describe(const GroupRecord& group, const PlanRecord::InClient& plan, size_t rank,
                                 v1::ClientPlacement* message) const TANDEM_REQUIRES(registry_mutex);
  // Sends the new engine of `gpu` the verdict pages of the GPU's groups, to keep for the next tandemd.
  void SendAgain(int gpu) TANDEM_REQUIRES(registry_mutex);
  // Gives everything of an ending group back. Members' mappings live on.
  void Remove(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);

 private:
  Status MakePages(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  // The group's engines keep its pages, or with `keep` false no longer, if there may be a next tandemd.
  void PostPages(const GroupRecord& group, bool keep, int only_gpu = -1) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  SegmentService& segments_;
};

}  // namespace tandem::daemon
