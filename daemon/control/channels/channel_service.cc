#include "daemon/control/channels/channel_service.h"

#include <utility>

#include "daemon/control/base/blame.h"
#include "daemon/control/base/validate.h"
#include "ipc/channel.h"

namespace tandem::daemon {
namespace {

constexpr uint32_t kDefaultEntries = 256;

}  // namespace

Result<v1::OpenChannelReply> ChannelService::Open(const SessionRef& session,
                                                  const v1::OpenChannelRequest& request,
                                                  const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidateOpenChannel(request));
  TANDEM_ASSIGN_OR_RETURN(const int gpu, core_.UseGpu(*session, request.gpu_uuid()));
  const uint32_t entries = request.entries() == 0 ? kDefaultEntries : request.entries();
  TANDEM_ASSIGN_OR_RETURN(ChannelMemory memory, CreateChannelMemory(entries));
  const SharedFd ring = std::make_shared<const UniqueFd>(std::move(memory.ring));
  const SharedFd words = std::make_shared<const UniqueFd>(std::move(memory.words));
  Registry& registry = core_.registry;
  auto batch = std::make_shared<CommandBatch>();
  v1::OpenChannelReply reply;
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    TANDEM_RETURN_IF_ERROR(CheckLimit("channels", "the session", core_.options.limits.channels_per_session,
                                      session->channels.size(), 1));
    TANDEM_RETURN_IF_ERROR(registry.ledger.Check(session->payer(), Resource::kDescriptors, 1));
    Status held_down;
    const bool up = waiter.Wait(lock, registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
      if (registry.GenerationOf(gpu) != 0 || registry.stopping || session->ended) return true;
      held_down = core_.CheckCrashLoop(gpu);
      return !held_down.ok();
    });
    TANDEM_RETURN_IF_ERROR(held_down);
    if (!up) {
      if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
      return DeadlineExceeded("the engine of GPU " + std::to_string(gpu) + " is not running")
          .WithDetail(BlameGpu("ENGINE_DOWN", gpu));
    }
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(session->payer(), Resource::kDescriptors, 1));
    reply.set_channel_id(registry.next_id++);
    reply.set_transfer_id(registry.next_id++);
    reply.set_generation(registry.GenerationOf(gpu));
    session->channels[reply.channel_id()] = ChannelRecord{gpu, entries, words, false};
    engine::v1::Command command;
    command.mutable_open_channel()->set_channel_id(reply.channel_id());
    command.mutable_open_channel()->set_session_id(session->id);
    command.mutable_open_channel()->set_entries(entries);
    registry.MailboxOf(gpu).Post(std::move(command), {ring, words}, batch);
  }
  Status status = batch->Wait(waiter);
  if (status.ok()) status = core_.SendDescriptors(session->id, reply.transfer_id(), {ring, words});
  if (!status.ok()) {
    Close(session, reply.channel_id(), waiter).ok();
    return status;
  }
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  if (const auto made = session->channels.find(reply.channel_id()); made != session->channels.end())
    made->second.acknowledged = true;
  registry.Touch(*session);
  return reply;
}

Status ChannelService::Close(const SessionRef& session, uint64_t channel_id, const Waiter& waiter) {
  Registry& registry = core_.registry;
  auto batch = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    const auto it = session->channels.find(channel_id);
    if (it == session->channels.end()) {
      return NotFound("no channel " + std::to_string(channel_id) + " in this session");
    }
    if (!it->second.over) {
      engine::v1::Command command;
      command.mutable_close_channel()->set_channel_id(channel_id);
      registry.MailboxOf(it->second.gpu).Post(std::move(command), {}, batch);
    }
    session->channels.erase(it);
    registry.Touch(*session);
    registry.ledger.Refund(session->payer(), Resource::kDescriptors, 1);
  }
  const Status status = batch->Wait(waiter);
  RegistryLock lock(registry);
  return registry.RemovalStatus(status);
}

void ChannelService::CloseAllOf(SessionRecord& session) {
  for (const auto& [id, channel] : session.channels) {
    engine::v1::Command command;
    command.mutable_close_channel()->set_channel_id(id);
    core_.registry.MailboxOf(channel.gpu).Post(std::move(command));
  }
  session.channels.clear();
}

void ChannelService::ReleaseOf(int gpu, const Status& ended) {
  for (const auto& [id, session] : core_.registry.sessions) {
    for (auto& [channel_id, channel] : session->channels) {
      if (channel.gpu != gpu || channel.over) continue;
      channel.over = true;
      core_.registry.Touch(*session);
      // The client's watchdog repeats it until its stream has drained.
      Result<ChannelWords> words = ChannelWords::Map(channel.words->get(), channel.entries);
      if (words.ok()) words->Release(ended);
    }
  }
}

}  // namespace tandem::daemon
