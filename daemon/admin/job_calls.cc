// The operators' calls about a job: suspend, resume. A user may make them for jobs of their own.
#include <chrono>
#include <string>

#include "common/log.h"
#include "daemon/admin/admin_service.h"

namespace tandem::daemon {
namespace {

constexpr std::chrono::milliseconds kDefaultWaitBudget{60'000}, kMaxWaitBudget{1'800'000};

}  // namespace

template <typename Request, typename Reply>
grpc::Status AdminService::ChangeJob(const grpc::ServerContext* context, const char* name, Act act,
                                     const Request& request, Reply* reply) const {
  const std::string peer = context == nullptr ? std::string() : context->peer();
  const Viewer manager = manager_ ? manager_(peer) : Viewer::OfAll();
  auto wait_budget = std::chrono::milliseconds(request.deadline_ms());
  if (wait_budget.count() == 0) wait_budget = kDefaultWaitBudget;
  const Waiter waiter{Waiter::Clock::now() + std::min(wait_budget, kMaxWaitBudget),
                      [context] { return context != nullptr && context->IsCancelled(); }};
  const Result<AskedJob> job = (sources_.control->*act)(
      request.session_id(), [&](uint32_t uid) { return manager.Sees(uid); }, waiter);
  log::Warning("audit call=" + std::string(name) + " arguments={" + request.ShortDebugString() + "}" +
               (job.ok() ? std::string() : " failed: " + job.status().message()));
  if (!job.ok()) return ToGrpc(job.status());
  reply->mutable_sessions()->Add(job->sessions.begin(), job->sessions.end());
  reply->mutable_groups()->Add(job->groups.begin(), job->groups.end());
  return grpc::Status::OK;
}

grpc::Status AdminService::Suspend(grpc::ServerContext* context, const admin::v1::SuspendRequest* request,
                                   admin::v1::SuspendReply* reply) {
  return ChangeJob(context, "Suspend", &Control::SuspendJob, *request, reply);
}

grpc::Status AdminService::Resume(grpc::ServerContext* context, const admin::v1::ResumeRequest* request,
                                  admin::v1::ResumeReply* reply) {
  return ChangeJob(context, "Resume", &Control::ResumeJob, *request, reply);
}

}  // namespace tandem::daemon
