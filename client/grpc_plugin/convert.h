// File: convert.h
//
// Between the library's plain types and the protocol's messages, and from gRPC's status to Tandem's.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "client/lib/base/control_api.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::client {

Status FromProto(const v1::StatusDetail& detail);
void ToProto(const MeasuredTime& time, v1::MeasuredTime* proto);
void ToProto(const Status& status, v1::StatusDetail* proto);
// gRPC ends the process where it has no descriptor for its poller. FD_LIMIT unless it can have some.
Status CheckGrpcsDescriptors();
// The one status of a daemon that is gone; `address` is the socket that the session was opened at.
Status DaemonLost(const std::string& address);
// The status of a call whose daemon has gone, while the session waits for the next one.
Status Restarting();
// Whether the status is one of a call whose daemon has gone, or is ending.
bool IsRestart(const Status& status);
// The daemon's status from the trailer "tandem-status-bin"; without one, gRPC's own code, and the daemon's
// address in the message.
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context, const std::string& address);

// INVALID_ARGUMENT, reason BAD_FIELD, with the field, for a text that is not UTF-8: protobuf takes no other.
Status CheckText(const std::string& field, const std::string& text);
// The same of a join's texts. The job key is no text.
Status CheckTexts(const JoinOptions& options, const std::string& gpu_uuid);
void ToProto(const TensorSpec& spec, v1::TensorSpec* proto);
void ToProto(const OpRequest& request, v1::OpRequest* proto);
PlanInfo FromProto(const v1::PlanInfo& proto);
ControlEvent FromProto(const v1::Event& proto);

}  // namespace tandem::client
