// File: checkpoint_calls.h
//
// `CheckpointCalls`: takes a session's connections away before its process is checkpointed, and makes them again
// (docs/suspend.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/grpc_plugin/daemon_calls.h"
#include "client/grpc_plugin/event_stream.h"
#include "client/grpc_plugin/lease.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::client {

// The ClientControl functions of the same names. One call of Begin or End at a time.
class CheckpointCalls {
 public:
  // All outlive this.
  CheckpointCalls(Lease& lease, DaemonCalls& calls, EventStream& events)
      : lease_(lease), calls_(calls), events_(events) {}

  Status Begin(Milliseconds deadline);
  Status End(Milliseconds deadline);
  Result<std::vector<UniqueFd>> TakeShared(const std::vector<uint64_t>& registration_ids,
                                           const std::vector<uint64_t>& group_ids, Milliseconds deadline);

 private:
  Lease& lease_;
  DaemonCalls& calls_;
  EventStream& events_;
  std::string secret_;  // of the last Begin; empty: the process has the session
};

}  // namespace tandem::client
