// File: suspension_calls.h
//
// The steps of a group's suspension over gRPC, for the core.
#pragma once

#include <cstdint>

#include "client/grpc_plugin/daemon_calls.h"
#include "client/grpc_plugin/lease.h"
#include "client/lib/base/control_api.h"
#include "tandem/status.h"

namespace tandem::client {

// ClientControl::Suspend: the call, and the descriptors that it sends by the lease. Any thread.
Result<SuspensionInfo> CallSuspendGroup(DaemonCalls& calls, Lease& lease, uint64_t group_id, SuspendStep step,
                                        uint64_t finished, Milliseconds deadline);

// ClientControl::ServeSuspension. Any thread.
Result<uint64_t> CallServeSuspension(DaemonCalls& calls, ServePhase phase, uint64_t request, uint64_t step);

}  // namespace tandem::client
