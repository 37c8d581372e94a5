// File: thread_group.h
//
// `ThreadGroup`: the calls of one thread between ncclGroupStart and ncclGroupEnd. A group with one collective
// is a call like any other. Every other group is NCCL's from its first call on.
#pragma once

#include <nccl.h>

#include <optional>

#include "client/nccl/call.h"

namespace tandem::nccl {

// Thread rule: one thread's; see ThisGroup.
class ThreadGroup {
 public:
  bool active() const { return depth_ > 0; }
  void Start() { ++depth_; }
  // Ends a level; at the last one runs what the group has, and returns its outcome.
  ncclResult_t End();
  // The same for a group that is only simulated: it is NCCL's.
  ncclResult_t SimulateEnd(ncclSimInfo_t* info);
  // Keeps the call until the group's end, or passes it to NCCL where the group is NCCL's.
  ncclResult_t Add(const NcclCall& call);
  // Makes the group that is active NCCL's, with the call that it has kept.
  void HandOver();

 private:
  int depth_ = 0;
  bool handed_over_ = false;
  ncclResult_t error_ = ncclSuccess;  // of the call that was handed over late
  std::optional<NcclCall> kept_;
};

ThreadGroup& ThisGroup();

}  // namespace tandem::nccl
