// Channels, and launches by gRPC.
#include "common/digest.h"
#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"
#include "ipc/channel.h"

namespace tandem::daemon {
namespace {

constexpr uint32_t kDefaultEntries = 256;

}  // namespace

Result<v1::OpenChannelReply> Control::OpenChannel(const SessionRef& session,
                                                  const v1::OpenChannelRequest& request,
                                                  const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidateOpenChannel(request));
  TANDEM_ASSIGN_OR_RETURN(int gpu, FindGpu(request.gpu_uuid()));
  const uint32_t entries = request.entries() == 0 ? kDefaultEntries : request.entries();
  TANDEM_ASSIGN_OR_RETURN(ChannelMemory memory, CreateChannelMemory(entries));
  const SharedFd ring = std::make_shared<const UniqueFd>(std::move(memory.ring));
  const SharedFd words = std::make_shared<const UniqueFd>(std::move(memory.words));
  auto batch = std::make_shared<CommandBatch>();
  v1::OpenChannelReply reply;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    TANDEM_RETURN_IF_ERROR(CheckLimit("channels", "the session", options_.limits.channels_per_session,
                                      session->channels.size(), 1));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Check(session->payer(), Resource::kDescriptors, 1));
    const uint64_t& generation = registry_->engine_generation[static_cast<size_t>(gpu)];
    if (!waiter.Wait(lock, registry_->engines_changed,
                     [&] { return generation != 0 || registry_->stopping || session->ended; })) {
      if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
      return Status(Code::kDeadlineExceeded, "the engine of GPU " + std::to_string(gpu) + " is not running",
                    {.reason = "ENGINE_DOWN", .who = "gpu " + std::to_string(gpu), .field = {}});
    }
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Charge(session->payer(), Resource::kDescriptors, 1));
    reply.set_channel_id(registry_->next_id++);
    reply.set_transfer_id(registry_->next_id++);
    reply.set_generation(generation);
    session->channels[reply.channel_id()] = Channel{gpu, entries, words, false};
    engine::v1::Command command;
    command.mutable_open_channel()->set_channel_id(reply.channel_id());
    command.mutable_open_channel()->set_session_id(session->id);
    command.mutable_open_channel()->set_entries(entries);
    registry_->mailboxes[static_cast<size_t>(gpu)]->Post(std::move(command), {ring, words}, batch);
  }
  Status status = batch->Wait(waiter);
  if (status.ok()) status = SendDescriptors(session, reply.transfer_id(), {ring, words});
  if (!status.ok()) {
    CloseChannel(session, reply.channel_id(), waiter).ok();
    return status;
  }
  return reply;
}

Status Control::CloseChannel(const SessionRef& session, uint64_t channel_id, const Waiter& waiter) {
  auto batch = std::make_shared<CommandBatch>();
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    auto it = session->channels.find(channel_id);
    if (it == session->channels.end()) {
      return NotFound("no channel " + std::to_string(channel_id) + " in this session");
    }
    if (!it->second.over) {
      engine::v1::Command command;
      command.mutable_close_channel()->set_channel_id(channel_id);
      registry_->mailboxes[static_cast<size_t>(it->second.gpu)]->Post(std::move(command), {}, batch);
    }
    session->channels.erase(it);
    registry_->ledger.Refund(session->payer(), Resource::kDescriptors, 1);
  }
  const Status status = batch->Wait(waiter);
  Lock lock(registry_->mutex);
  return LetGoLocked(status);
}

Result<v1::LaunchReply> Control::Launch(const SessionRef& session, const v1::LaunchRequest& request) {
  TANDEM_RETURN_IF_ERROR(ValidateLaunch(request));
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  const Status unknown = NotFound("no plan " + std::to_string(request.plan_id()) + " in this session");
  auto it = registry_->plan_groups.find(request.plan_id());
  const std::shared_ptr<Group> group = it == registry_->plan_groups.end() ? nullptr : it->second.lock();
  if (!group) return unknown;
  int rank = 0;
  if (!FindGroupLocked(*session, group->id, &rank).ok()) return unknown;
  if (group->plans.at(request.plan_id()).released[static_cast<size_t>(rank)]) return unknown;
  if (group->state != GroupState::kReady) return group->broken;
  TANDEM_RETURN_IF_ERROR(InstalledLocked(*group));
  TANDEM_RETURN_IF_ERROR(CheckLimit("pending launches", "the session",
                                    options_.limits.pending_launches_per_session, session->launches.size(),
                                    1));
  const uint64_t id = registry_->next_id++;
  session->launches[id].gpu = group->members[static_cast<size_t>(rank)].gpu;
  registry_->launches[id] = session;
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
  const int gpu = group->members[static_cast<size_t>(rank)].gpu;
  // Whatever is wrong with the bindings, the engine says so with the launch's outcome: a refused launch
  // arrives too.
  registry_->mailboxes[static_cast<size_t>(gpu)]->Post(
      std::move(command), {}, [this, gpu, id](const Status& status) {
        if (status.ok()) return;
        // An engine that is gone has not taken it: the launch ends as all those do that the engine's end
        // meets, whether its end is known here already or not.
        const bool gone = status.code() == Code::kUnavailable;
        EndLaunch(
            gpu, id,
            gone ? Status(Code::kAborted,
                          "the engine of GPU " + std::to_string(gpu) + " ended before the launch reached it",
                          {.reason = "ENGINE_RESTARTED", .who = "gpu " + std::to_string(gpu), .field = {}})
                 : status);
      });
  v1::LaunchReply reply;
  reply.set_launch_id(id);
  return reply;
}

Status Control::WaitLaunch(const SessionRef& session, uint64_t launch_id, const Waiter& waiter) {
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  auto it = session->launches.find(launch_id);
  if (it == session->launches.end()) {
    return NotFound("no launch " + std::to_string(launch_id) +
                    " in this session, or its outcome was taken already");
  }
  const bool done = waiter.Wait(lock, session->launches_changed, [&] {
    it = session->launches.find(launch_id);
    return it == session->launches.end() || it->second.done || session->ended || registry_->stopping;
  });
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  if (!done) {
    if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
    return DeadlineExceeded("launch " + std::to_string(launch_id) + " has not ended yet")
        .WithDetail({.reason = "NOT_ENDED", .who = {}, .field = {}});
  }
  if (it == session->launches.end()) return NotFound("the launch's outcome was taken by another call");
  const Status status = it->second.status;
  session->launches.erase(it);
  registry_->launches.erase(launch_id);
  return status;
}

}  // namespace tandem::daemon
