// File: family_group.h
//
// `FamilyGroup`: Tandem's group for one communicator, whose collectives keep their families of plans.
#pragma once

#include <memory>
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
  // Gives up the group's memory and brings it back, with all ranks. Idempotent.
  Status Suspend();
  Status Resume();
  // Leaves, after this rank's launches, for which it waits so long. Nothing is called after it.
  void Leave(int64_t deadline_ms);
  // Ends the session, and with it launches that wait for other ranks. Nothing is called after it.
  void Detach();

 private:
  FamilyGroup(Session session, OwnedGroup group) : session_(std::move(session)), group_(std::move(group)) {}

  const Session session_;
  const TandemLibrary& library_ = *session_.library;
  OwnedGroup group_;              // the holds end before it
  std::vector<OwnedHold> holds_;  // of captures with a launch of this group
};

}  // namespace tandem::nccl
