// File: plan_members.h
//
// `PlanMembers`: the work of a plan's launches by their number of rows. A plan of one shape has one member. A
// family's are made when they are first launched: from the family's table and this rank's request, without a
// call of another process, and alike on all ranks.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "client/lib/base/control_api.h"
#include "client/lib/base/slot_overlap.h"
#include "client/lib/client_launch/client_queue.h"
#include "common/row_requests.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::client {

// Arguments of the launches of one number of rows. Launches in flight and graphs hold them.
struct PlanMember {
  explicit PlanMember(const OpRequest& request) : overlap(request) {}

  int64_t rows = LaunchOptions::kBoundRows;  // of a family's
  std::vector<uint64_t> slot_bytes;          // by slot: bytes needed from a binding's offset
  SlotOverlap overlap;
  std::shared_ptr<ClientWork> work;
  std::shared_ptr<void> keep;  // the memory that the work uses, and the group
};

// INVALID_ARGUMENT, reason NOT_A_FAMILY: a launch of a plan of one shape asks for rows.
Status NotAFamily();

// Thread-safe.
class PlanMembers {
 public:
  // Makes the bound's member. `request`: this rank's, with the shapes of the bound. `keep`: see PlanMember.
  // The queue is the group's, which `keep` holds. FAILED_PRECONDITION, reason MEMBERS_VERSION: tandemd plans
  // families otherwise than this library. The errors of ClientQueue::Prepare.
  static Result<std::unique_ptr<PlanMembers>> Make(const ClientPlacementInfo& info, const OpRequest& request,
                                                   ClientQueue& queue, const ClientLaunchMemory& memory,
                                                   std::shared_ptr<void> keep);

  // The member of `rows` rows (LaunchOptions::rows). INVALID_ARGUMENT, field "rows": a plan of one shape has
  // no rows, or the number is negative or no multiple of the unit. OUT_OF_RANGE, field "rows": above the
  // bound.
  Result<std::shared_ptr<const PlanMember>> Find(int64_t rows);

 private:
  PlanMembers(ClientQueue& queue, const ClientLaunchMemory& memory, const plan::RankProgram& bound,
              std::shared_ptr<void> keep)
      : queue_(queue),
        memory_(memory),
        rank_(static_cast<size_t>(bound.rank)),
        world_size_(static_cast<size_t>(bound.world_size)),
        keep_(std::move(keep)) {}
  Result<std::shared_ptr<PlanMember>> MakeMember(const plan::RankProgram& program,
                                                 const OpRequest& request) const;
  // Makes the members whose kernels and products stand for all others'.
  Status MakeFirstMembers(bool has_products);
  Result<std::shared_ptr<PlanMember>> MakeMember(int64_t rows) const;

  ClientQueue& queue_;
  const ClientLaunchMemory memory_;
  const size_t rank_, world_size_;
  const std::shared_ptr<void> keep_;
  std::shared_ptr<const FamilyInfo> family_;  // null: of one shape
  std::optional<RowRequests> row_requests_;   // of a family: this rank's, with which the others' agree
  std::shared_ptr<PlanMember> bound_;
  Trials trials_ = Trials::kWhole;  // of members that are made now

  std::mutex mutex_;
  // The members launched last, the latest first, and where each is.
  std::list<std::shared_ptr<PlanMember>> latest_;
  std::unordered_map<int64_t, std::list<std::shared_ptr<PlanMember>>::iterator> by_rows_;
};

}  // namespace tandem::client
