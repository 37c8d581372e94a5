// File: status_codec.h
//
// Tandem's status as gRPC's: the code and message as they are, the detail in the trailer "tandem-status-bin".
// The one place in the daemon where it happens; the client library has its own reader.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "tandem/status.h"

namespace tandem::daemon {

inline constexpr char kStatusTrailer[] = "tandem-status-bin";

// Adds the trailer to `context` and returns gRPC's status; OK stays OK.
grpc::Status ToGrpc(grpc::ServerContext* context, const Status& status);

}  // namespace tandem::daemon
