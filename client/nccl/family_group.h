// File: family_group.h
//
// `FamilyGroup`: Tandem's group for one communicator, with its families of plans.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/nccl/call.h"
#include "client/nccl/nccl_device.h"
#include "client/nccl/session.h"

namespace tandem::nccl {

// Not thread-safe.
class FamilyGroup {
 public:
  struct Place {
    std::string key;  // of the job, equal on all ranks
    std::string gpu;
    int rank = 0;
    int ranks = 0;
  };
  // Waits for all ranks.
  static Result<std::unique_ptr<FamilyGroup>> Join(Session session, const Place& place);

  // Launches the call on its stream. The first call of a family waits for all ranks, outside of captures.
  // Returns why NCCL has to run the call, alike on all ranks; empty: it is launched.
  Result<std::string> Run(const NcclCall& call, NcclDevice& device);
  // The failure of a launch that no call has returned.
  Status TakeFailure();
  // Leaves, after this rank's launches, for which it waits so long. Nothing is called after it.
  void Leave(int64_t deadline_ms);
  // Ends the session, and with it launches that wait for other ranks. Nothing is called after it.
  void Detach();

 private:
  struct Family {
    int64_t bound = 0;
    OwnedPlan plan;
  };
  FamilyGroup(Session session, Place place, OwnedGroup group)
      : session_(std::move(session)), place_(std::move(place)), group_(std::move(group)) {}

  tandem_plan* Find(const FamilyKey& key, int64_t rows) const;
  Status Prepare(const FamilyKey& key, int64_t bound);
  Status Launch(const NcclCall& call, NcclDevice& device, tandem_plan* plan, bool in_place, int64_t rows);

  const Session session_;
  const TandemLibrary& library_ = *session_.library;
  const Place place_;
  OwnedGroup group_;  // the plans and the holds end before it
  uint64_t prepared_ = 0;
  std::map<FamilyKey, std::vector<Family>> families_;  // bounds ascend
  std::map<FamilyKey, std::string> refused_;           // why; alike on all ranks
  std::vector<OwnedHold> holds_;                       // of captures with a launch of this group
};

}  // namespace tandem::nccl
