// The operators' calls that change something: cordon, drain, evict, reset; and the audit of all such calls.
#include <chrono>
#include <utility>

#include "common/log.h"
#include "daemon/admin/admin_service.h"

namespace tandem::daemon {
namespace {

// A request has as many bytes as its sender likes.
constexpr size_t kMaxArguments = 512;

}  // namespace

grpc::Status AdminControlService::Audited(const grpc::ServerContext* context, const char* name,
                                          const google::protobuf::Message& request,
                                          const std::function<grpc::Status()>& call) const {
  std::string caller;
  if (context != nullptr && sources_.caller) caller = sources_.caller(context->peer());
  std::string arguments = request.ShortDebugString();
  if (arguments.size() > kMaxArguments) arguments = arguments.substr(0, kMaxArguments) + "...";
  if (caller.empty()) caller = "caller=unknown";
  const std::string text =
      "audit call=" + std::string(name) + " " + caller + " arguments={" + arguments + "}";
  log::Line line = log::SplitFields("audit " + caller);
  line.fields.emplace(line.fields.begin(), "call", name);
  line.fields.emplace_back("arguments", "{" + arguments + "}");
  // A warning, so that no log level hides it.
  log::Write(log::Level::kWarning, text, line);
  grpc::Status status = call();
  if (!status.ok()) {
    const std::string failure =
        " failed: " + std::string(CodeName(static_cast<Code>(static_cast<int>(status.error_code())))) + ": " +
        status.error_message();
    line.message += failure;
    log::Write(log::Level::kWarning, text + failure, line);
  }
  return status;
}

void AdminControlService::SetAdmission(Admission admission) {
  sources_.control->SetAdmission(admission);
  if (sources_.on_admission) sources_.on_admission(admission);
}

grpc::Status AdminControlService::Cordon(grpc::ServerContext* context,
                                         const admin::v1::CordonRequest* request,
                                         admin::v1::CordonReply* reply) {
  return Audited(context, "Cordon", *request, [&] {
    if (!request->gpu_uuid().empty()) {
      const Result<int> gpu = sources_.topology.Find(request->gpu_uuid());
      if (!gpu.ok()) return ToGrpc(Status(Code::kNotFound, gpu.status().message()));
      if (!sources_.cordon_gpu) return ToGrpc(Unimplemented("GPUs are not cordoned here"));
      sources_.cordon_gpu(*gpu, request->undo() ? "" : "by an operator");
      return grpc::Status::OK;
    }
    const bool draining = sources_.control->Snapshot().admission == Admission::kDraining;
    if (request->undo()) {
      SetAdmission(Admission::kOpen);
    } else if (!draining) {
      SetAdmission(Admission::kCordoned);
    }
    const ControlSnapshot now = sources_.control->Snapshot();
    reply->set_sessions(static_cast<uint32_t>(now.sessions));
    reply->set_groups(static_cast<uint32_t>(now.groups));
    return grpc::Status::OK;
  });
}

grpc::Status AdminControlService::Drain(grpc::ServerContext* context, const admin::v1::DrainRequest* request,
                                        admin::v1::DrainReply* reply) {
  return Audited(context, "Drain", *request, [&] {
    SetAdmission(request->undo() ? Admission::kOpen : Admission::kDraining);
    auto left = std::pair<uint64_t, uint64_t>();
    if (request->undo()) {
      const ControlSnapshot now = sources_.control->Snapshot();
      left = {now.sessions, now.groups};
    } else {
      const Waiter waiter{Waiter::Clock::now() + std::chrono::milliseconds(request->deadline_ms()),
                          [context] { return context->IsCancelled(); }};
      left = sources_.control->WaitDrained(waiter);
    }
    reply->set_sessions_left(static_cast<uint32_t>(left.first));
    reply->set_groups_left(static_cast<uint32_t>(left.second));
    return grpc::Status::OK;
  });
}

grpc::Status AdminControlService::Evict(grpc::ServerContext* context, const admin::v1::EvictRequest* request,
                                        admin::v1::EvictReply* reply) {
  return Audited(context, "Evict", *request, [&] {
    if (request->gpu_uuid().empty()) return ToGrpc(sources_.control->Evict(request->session_id()));
    auto pids = EvictFromGpu(sources_, request->gpu_uuid(), request->force());
    if (!pids.ok()) return ToGrpc(pids.status());
    for (int pid : *pids) reply->add_pids(pid);
    return grpc::Status::OK;
  });
}

grpc::Status AdminControlService::Reset(grpc::ServerContext* context, const admin::v1::ResetRequest* request,
                                        admin::v1::ResetReply*) {
  return Audited(context, "Reset", *request, [&] {
    Result<int> gpu = sources_.topology.Find(request->gpu_uuid());
    if (!gpu.ok()) return ToGrpc(Status(Code::kNotFound, gpu.status().message()));
    return ToGrpc(sources_.engines->Reset(*gpu));
  });
}

}  // namespace tandem::daemon
