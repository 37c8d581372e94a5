// File: tandem_service.h
//
// `TandemService`: the clients' gRPC service over the control plane. Every handler authenticates by the one
// function here, waits no longer than its caller, and answers with Tandem's status.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/control/control.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::daemon {

// Bounds of one gRPC message, for ServerBuilder::SetMaxReceiveMessageSize.
inline constexpr int kMaxRequestBytes = 4 << 20;
// The metadata that carries the token: 32 hexadecimal digits, or the 16 bytes themselves.
inline constexpr char kTokenKey[] = "tandem-token";
inline constexpr char kTokenBinaryKey[] = "tandem-token-bin";

// Thread-safe. `control` outlives it.
class TandemService final : public v1::Tandem::Service {
 public:
  // `authenticated` is called with the connection, as grpc::ServerContext::peer() names it, and the session
  // of each call that carries a session's token; empty: nobody asks.
  using Authenticated = std::function<void(const std::string& peer, uint64_t session)>;
  explicit TandemService(Control& control, Authenticated authenticated = nullptr)
      : control_(control), authenticated_(std::move(authenticated)) {}

  grpc::Status JoinGroup(grpc::ServerContext* context, const v1::JoinGroupRequest* request,
                         v1::JoinGroupReply* reply) override;
  grpc::Status LeaveGroup(grpc::ServerContext* context, const v1::LeaveGroupRequest* request,
                          v1::LeaveGroupReply* reply) override;
  grpc::Status Empty(grpc::ServerContext* context, const v1::EmptyRequest* request,
                     v1::EmptyReply* reply) override;
  grpc::Status Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                          v1::RendezvousReply* reply) override;
  grpc::Status Free(grpc::ServerContext* context, const v1::FreeRequest* request,
                    v1::FreeReply* reply) override;
  grpc::Status RegisterTensor(grpc::ServerContext* context, const v1::RegisterTensorRequest* request,
                              v1::RegisterTensorReply* reply) override;
  grpc::Status Deregister(grpc::ServerContext* context, const v1::DeregisterRequest* request,
                          v1::DeregisterReply* reply) override;
  grpc::Status Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                       v1::PrepareReply* reply) override;
  grpc::Status Preview(grpc::ServerContext* context, const v1::PreviewRequest* request,
                       v1::PreviewReply* reply) override;
  grpc::Status ArmPlan(grpc::ServerContext* context, const v1::ArmPlanRequest* request,
                       v1::ArmPlanReply* reply) override;
  grpc::Status ReportFailure(grpc::ServerContext* context, const v1::ReportFailureRequest* request,
                             v1::ReportFailureReply* reply) override;
  grpc::Status RenewGroup(grpc::ServerContext* context, const v1::RenewGroupRequest* request,
                          v1::RenewGroupReply* reply) override;
  grpc::Status SuspendGroup(grpc::ServerContext* context, const v1::SuspendGroupRequest* request,
                            v1::SuspendGroupReply* reply) override;
  grpc::Status ServeSuspension(grpc::ServerContext* context, const v1::ServeSuspensionRequest* request,
                               v1::ServeSuspensionReply* reply) override;
  grpc::Status BeginCheckpoint(grpc::ServerContext* context, const v1::BeginCheckpointRequest* request,
                               v1::BeginCheckpointReply* reply) override;
  grpc::Status TakeShared(grpc::ServerContext* context, const v1::TakeSharedRequest* request,
                          v1::TakeSharedReply* reply) override;
  grpc::Status ReleasePlan(grpc::ServerContext* context, const v1::ReleasePlanRequest* request,
                           v1::ReleasePlanReply* reply) override;
  grpc::Status OpenChannel(grpc::ServerContext* context, const v1::OpenChannelRequest* request,
                           v1::OpenChannelReply* reply) override;
  grpc::Status CloseChannel(grpc::ServerContext* context, const v1::CloseChannelRequest* request,
                            v1::CloseChannelReply* reply) override;
  grpc::Status Launch(grpc::ServerContext* context, const v1::LaunchRequest* request,
                      v1::LaunchReply* reply) override;
  grpc::Status WaitLaunch(grpc::ServerContext* context, const v1::WaitLaunchRequest* request,
                          v1::WaitLaunchReply* reply) override;
  grpc::Status Events(grpc::ServerContext* context, const v1::EventsRequest* request,
                      grpc::ServerWriter<v1::Event>* writer) override;
  grpc::Status Detach(grpc::ServerContext* context, const v1::DetachRequest* request,
                      v1::DetachReply* reply) override;

 private:
  // The session of a call; the only place where tokens are looked at.
  Result<SessionRef> Authenticate(const grpc::ServerContext& context) const;
  Result<SessionRef> SessionOf(const grpc::ServerContext& context) const;

  // Runs `work(session, waiter)`, which gives a Result<Reply> or a Status.
  template <typename Reply, typename Work>
  grpc::Status Answer(grpc::ServerContext* context, uint64_t deadline_ms, Reply* reply, Work work) const;

  Control& control_;
  const Authenticated authenticated_;
};

}  // namespace tandem::daemon
