// File: mapped_plan.h
//
// `MappedPlan`: a plan that this process launches on the caller's streams, with the memory that it maps.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/control_api.h"
#include "client/lib/base/launch_state.h"
#include "client/lib/base/segment_cache.h"
#include "client/lib/base/usage_ledger.h"
#include "client/lib/client_launch/client_group.h"
#include "client/lib/client_launch/client_queue.h"
#include "client/lib/client_launch/plan_members.h"
#include "common/digest.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::client {

// Thread-safe. Launches in flight and graphs hold its members, and with these the mappings and the group.
class MappedPlan {
 public:
  // Maps what the plan needs. `request`: this rank's. INTERNAL: the daemon's answer does not fit together.
  static Result<std::shared_ptr<MappedPlan>> Make(const ClientPlacementInfo& info, const PlanInfo& plan,
                                                  const OpRequest& request, ClientDevice& device,
                                                  SegmentCache& segments, UsageLedger& ledger,
                                                  const std::string& gpu_uuid,
                                                  std::shared_ptr<ClientGroup> group);

  ClientGroup& group() const { return *group_; }
  // The member for launches of `rows` rows; see PlanMembers::Find.
  Result<std::shared_ptr<const PlanMember>> Member(int64_t rows) { return members_->Find(rows); }

  // Puts one launch of `member` onto `stream`, behind all earlier ones of the group. `deadline`: of the
  // launch; 0: the group's. Its failure is kept in `state` under `stream_id`. `plan`: the handle that a graph
  // holds; null outside of captures.
  Status Launch(LaunchStream& stream, bool capturing, uint64_t stream_id, ClientBindings bindings,
                const std::shared_ptr<const PlanMember>& member, Milliseconds deadline,
                const std::shared_ptr<ClientPlanState>& state, std::shared_ptr<void> plan);

 private:
  MappedPlan() = default;

  uint64_t plan_id_ = 0;
  std::chrono::milliseconds deadline_{0};
  std::shared_ptr<ClientGroup> group_;
  std::unique_ptr<PlanMembers> members_;
};

// Fills `tag` from what must be alike on all ranks: the plan, the user's tag, and the place of symmetric
// operands.
class ClientTag {
 public:
  void Add(uint64_t value) { digest_ = FoldDigest(digest_, value); }
  uint16_t Fold() const;

 private:
  uint64_t digest_ = kDigestSeed;
};

}  // namespace tandem::client
