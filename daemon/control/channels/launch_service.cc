#include "daemon/control/channels/launch_service.h"

#include <utility>

#include "common/digest.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/validate.h"

namespace tandem::daemon {

Result<v1::LaunchReply> LaunchService::Launch(const SessionRef& session, const v1::LaunchRequest& request) {
  TANDEM_RETURN_IF_ERROR(ValidateLaunch(request));
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  const Status unknown = NotFound("no plan " + std::to_string(request.plan_id()) + " in this session");
  const auto it = registry.plan_groups.find(request.plan_id());
  const std::shared_ptr<GroupRecord> group = it == registry.plan_groups.end() ? nullptr : it->second.lock();
  if (!group) return unknown;
  int rank = 0;
  if (!registry.FindGroup(*session, group->id, &rank).ok()) return unknown;
  const PlanRecord& plan = group->plans.at(request.plan_id());
  if (plan.released[static_cast<size_t>(rank)]) return unknown;
  if (plan.client) {
    return FailedPrecondition("plan '" + plan.key +
                              "' is placed in the client, which launches it on a stream")
        .WithDetail({.reason = "CLIENT_PLACED", .field = "plan_id"});
  }
  TANDEM_RETURN_IF_ERROR(installer_.Installed(*group));
  TANDEM_RETURN_IF_ERROR(CheckLimit("pending launches", "the session",
                                    core_.options.limits.pending_launches_per_session,
                                    session->launches.size(), 1));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(session->payer(), Resource::kLaunches, 1));
  const uint64_t id = registry.next_id++;
  const int gpu = group->gpus[static_cast<size_t>(rank)];
  session->launches[id].gpu = gpu;
  registry.TouchLaunch(id);
  registry.launches[id] = session;
  engine::v1::Command command;
  engine::v1::Launch& launch = *command.mutable_launch();
  launch.set_launch_id(id);
  launch.set_session_id(session->id);
  launch.set_plan_id(request.plan_id());
  for (const v1::Binding& binding : request.bindings()) {
    engine::v1::Binding* to = launch.add_bindings();
    to->set_registration_id(binding.registration_id());
    to->set_offset(binding.offset());
  }
  launch.set_deadline_ms(request.deadline_ms());
  launch.set_tag_digest(TagDigest(request.tag()));
  launch.set_generation(request.generation() != 0 ? request.generation() : group->generation);
  registry.MailboxOf(gpu).Post(std::move(command), {}, [this, gpu, id](const Status& status) {
    if (status.ok()) return;
    // An engine that is gone has not taken it: the launch ends like all that an engine's end meets, whether
    // the end is known here already or not.
    const bool gone = status.code() == Code::kUnavailable;
    End(gpu, id,
        gone ? Aborted("the engine of GPU " + std::to_string(gpu) + " ended before the launch reached it")
                   .WithDetail(BlameGpu("ENGINE_RESTARTED", gpu))
             : status);
  });
  v1::LaunchReply reply;
  reply.set_launch_id(id);
  return reply;
}

Status LaunchService::Wait(const SessionRef& session, uint64_t launch_id, const Waiter& waiter) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  auto it = session->launches.find(launch_id);
  if (it == session->launches.end()) {
    return NotFound("no launch " + std::to_string(launch_id) +
                    " in this session, or its outcome was taken already");
  }
  const bool done = waiter.Wait(lock, session->launches_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
    it = session->launches.find(launch_id);
    return it == session->launches.end() || it->second.done || session->ended || registry.stopping;
  });
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  if (!done) {
    if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
    return DeadlineExceeded("launch " + std::to_string(launch_id) + " has not ended yet")
        .WithDetail({.reason = "NOT_ENDED", .who = {}, .field = {}});
  }
  if (it == session->launches.end()) return NotFound("the launch's outcome was taken by another call");
  Status status = it->second.status;
  session->launches.erase(it);
  registry.ledger.Refund(session->payer(), Resource::kLaunches, 1);
  registry.launches.erase(launch_id);
  registry.TouchLaunch(launch_id);
  return status;
}

void LaunchService::End(int gpu, uint64_t launch_id, Status status) {
  RegistryLock lock(core_.registry);
  const auto it = core_.registry.launches.find(launch_id);
  const SessionRef session = it == core_.registry.launches.end() ? nullptr : it->second.lock();
  if (!session) return;
  const auto launch = session->launches.find(launch_id);
  if (launch == session->launches.end() || launch->second.gpu != gpu || launch->second.done) return;
  launch->second.done = true;
  launch->second.status = std::move(status);
  core_.registry.TouchLaunch(launch_id);
  session->launches_changed.notify_all();
}

void LaunchService::EndAllOf(int gpu, const Status& ended) {
  for (const auto& [id, session] : core_.registry.sessions) {
    bool any = false;
    for (auto& [launch_id, launch] : session->launches) {
      if (launch.gpu != gpu || launch.done) continue;
      launch.done = any = true;
      launch.status = ended;
      core_.registry.TouchLaunch(launch_id);
    }
    if (any) session->launches_changed.notify_all();
  }
}

void LaunchService::ForgetAllOf(SessionRecord& session) {
  for (const auto& [id, launch] : session.launches) {
    core_.registry.launches.erase(id);
    core_.registry.TouchLaunch(id);
  }
  core_.registry.ledger.Refund(session.payer(), Resource::kLaunches, session.launches.size());
  session.launches_changed.notify_all();
}

}  // namespace tandem::daemon
