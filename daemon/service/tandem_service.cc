#include "daemon/service/tandem_service.h"

#include <string>
#include <type_traits>
#include <utility>

#include "daemon/control/records/session_record.h"
#include "daemon/service/status_codec.h"

namespace tandem::daemon {
namespace {

// How long a stream of events outlives its cancellation: everything else that ends it wakes it, and each look
// costs a thread's waking up, for every session.
constexpr std::chrono::seconds kEventSlice{10};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The bytes of a hexadecimal token; anything else is returned as it is, and fails as BAD_TOKEN.
std::string FromHex(const std::string& text) {
  if (text.size() != 2 * kTokenBytes) return text.empty() ? text : "?";
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = HexDigit(text[i]), low = HexDigit(text[i + 1]);
    if (high < 0 || low < 0) return "?";
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace

Result<SessionRef> TandemService::Authenticate(const grpc::ServerContext& context) const {
  Result<SessionRef> session = SessionOf(context);
  if (session.ok() && authenticated_) authenticated_(context.peer(), (*session)->id);
  return session;
}

Result<SessionRef> TandemService::SessionOf(const grpc::ServerContext& context) const {
  const auto& metadata = context.client_metadata();
  if (auto it = metadata.find(kTokenBinaryKey); it != metadata.end()) {
    return control_.Authenticate(std::string_view(it->second.data(), it->second.size()));
  }
  auto it = metadata.find(kTokenKey);
  if (it == metadata.end()) return control_.Authenticate("");
  return control_.Authenticate(FromHex(std::string(it->second.data(), it->second.size())));
}

template <typename Reply, typename Work>
grpc::Status TandemService::Answer(grpc::ServerContext* context, uint64_t deadline_ms, Reply* reply,
                                   Work work) const {
  Result<SessionRef> session = Authenticate(*context);
  if (!session.ok()) return ToGrpc(context, session.status());
  const Result<std::shared_ptr<void>> place = control_.Admit(*session);
  if (!place.ok()) return ToGrpc(context, place.status());
  const Waiter waiter = control_.WaiterFor(deadline_ms, [context] { return context->IsCancelled(); });
  auto result = work(*session, waiter);
  // The next tandemd knows nothing of what has been done since.
  if (control_.leaving()) {
    return ToGrpc(context, Unavailable("tandemd is restarting").WithDetail({.reason = "RESTARTING"}));
  }
  if constexpr (std::is_same_v<decltype(result), Status>) {
    return ToGrpc(context, result);
  } else {
    if (!result.ok()) return ToGrpc(context, result.status());
    *reply = std::move(*result);
    return grpc::Status::OK;
  }
}

grpc::Status TandemService::JoinGroup(grpc::ServerContext* context, const v1::JoinGroupRequest* request,
                                      v1::JoinGroupReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.JoinGroup(session, *request, waiter);
  });
}

grpc::Status TandemService::LeaveGroup(grpc::ServerContext* context, const v1::LeaveGroupRequest* request,
                                       v1::LeaveGroupReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.LeaveGroup(session, request->group_id(), waiter);
  });
}

grpc::Status TandemService::Empty(grpc::ServerContext* context, const v1::EmptyRequest* request,
                                  v1::EmptyReply* reply) {
  return Answer(context, 0, reply,
                [&](const SessionRef& session, const Waiter&) { return control_.Empty(session, *request); });
}

grpc::Status TandemService::Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                                       v1::RendezvousReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.Rendezvous(session, *request, waiter);
  });
}

grpc::Status TandemService::Free(grpc::ServerContext* context, const v1::FreeRequest* request,
                                 v1::FreeReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter&) {
    return control_.Free(session, request->tensor_id());
  });
}

grpc::Status TandemService::RegisterTensor(grpc::ServerContext* context,
                                           const v1::RegisterTensorRequest* request,
                                           v1::RegisterTensorReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.RegisterTensor(session, *request, waiter);
  });
}

grpc::Status TandemService::Deregister(grpc::ServerContext* context, const v1::DeregisterRequest* request,
                                       v1::DeregisterReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.Deregister(session, request->registration_id(), waiter);
  });
}

grpc::Status TandemService::Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                                    v1::PrepareReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.Prepare(session, *request, waiter);
  });
}

grpc::Status TandemService::Preview(grpc::ServerContext* context, const v1::PreviewRequest* request,
                                    v1::PreviewReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter&) {
    return control_.Preview(session, *request);
  });
}

grpc::Status TandemService::ArmPlan(grpc::ServerContext* context, const v1::ArmPlanRequest* request,
                                    v1::ArmPlanReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.ArmPlan(session, *request, waiter);
  });
}

grpc::Status TandemService::ReportFailure(grpc::ServerContext* context,
                                          const v1::ReportFailureRequest* request,
                                          v1::ReportFailureReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter&) {
    return control_.ReportFailure(session, *request);
  });
}

grpc::Status TandemService::RenewGroup(grpc::ServerContext* context, const v1::RenewGroupRequest* request,
                                       v1::RenewGroupReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.RenewGroup(session, *request, waiter);
  });
}

grpc::Status TandemService::SuspendGroup(grpc::ServerContext* context, const v1::SuspendGroupRequest* request,
                                         v1::SuspendGroupReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.SuspendGroup(session, *request, waiter);
  });
}

grpc::Status TandemService::ServeSuspension(grpc::ServerContext* context,
                                            const v1::ServeSuspensionRequest* request,
                                            v1::ServeSuspensionReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.ServeSuspension(session, *request, waiter);
  });
}

grpc::Status TandemService::BeginCheckpoint(grpc::ServerContext* context, const v1::BeginCheckpointRequest*,
                                            v1::BeginCheckpointReply* reply) {
  return Answer(context, 0, reply,
                [&](const SessionRef& session, const Waiter&) { return control_.BeginCheckpoint(session); });
}

grpc::Status TandemService::TakeShared(grpc::ServerContext* context, const v1::TakeSharedRequest* request,
                                       v1::TakeSharedReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter&) {
    return control_.TakeShared(session, *request);
  });
}

grpc::Status TandemService::ReleasePlan(grpc::ServerContext* context, const v1::ReleasePlanRequest* request,
                                        v1::ReleasePlanReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter&) {
    return control_.ReleasePlan(session, request->plan_id());
  });
}

grpc::Status TandemService::OpenChannel(grpc::ServerContext* context, const v1::OpenChannelRequest* request,
                                        v1::OpenChannelReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.OpenChannel(session, *request, waiter);
  });
}

grpc::Status TandemService::CloseChannel(grpc::ServerContext* context, const v1::CloseChannelRequest* request,
                                         v1::CloseChannelReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.CloseChannel(session, request->channel_id(), waiter);
  });
}

grpc::Status TandemService::Launch(grpc::ServerContext* context, const v1::LaunchRequest* request,
                                   v1::LaunchReply* reply) {
  return Answer(context, 0, reply,
                [&](const SessionRef& session, const Waiter&) { return control_.Launch(session, *request); });
}

grpc::Status TandemService::WaitLaunch(grpc::ServerContext* context, const v1::WaitLaunchRequest* request,
                                       v1::WaitLaunchReply* reply) {
  return Answer(context, request->deadline_ms(), reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.WaitLaunch(session, request->launch_id(),
                               request->poll() ? Waiter::For(std::chrono::milliseconds(0)) : waiter);
  });
}

grpc::Status TandemService::Events(grpc::ServerContext* context, const v1::EventsRequest*,
                                   grpc::ServerWriter<v1::Event>* writer) {
  Result<SessionRef> session = Authenticate(*context);
  if (!session.ok()) return ToGrpc(context, session.status());
  const Result<std::shared_ptr<void>> place = control_.Admit(*session);
  if (!place.ok()) return ToGrpc(context, place.status());
  const uint64_t stream = control_.OpenEvents(*session);
  writer->SendInitialMetadata();
  while (!context->IsCancelled()) {
    Result<std::optional<v1::Event>> event = control_.NextEvent(*session, stream, Waiter::For(kEventSlice));
    if (!event.ok()) return ToGrpc(context, event.status());
    if (event->has_value() && !writer->Write(**event)) break;
  }
  return grpc::Status::CANCELLED;
}

grpc::Status TandemService::Detach(grpc::ServerContext* context, const v1::DetachRequest*,
                                   v1::DetachReply* reply) {
  return Answer(context, 0, reply, [&](const SessionRef& session, const Waiter& waiter) {
    return control_.Detach(session, waiter);
  });
}

}  // namespace tandem::daemon
