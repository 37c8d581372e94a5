#include "engine/holdings.h"

#include <fcntl.h>

#include <algorithm>

#include "common/fd_socket.h"
#include "ipc/handover_versions.h"

namespace tandem::engine {
namespace {

using Case = v1::Command::CommandCase;

// Outcomes of launches by gRPC that are kept while there is no tandemd. A user has 8192 launches at most, so
// one user's drive out nobody else's.
constexpr size_t kMaxOutcomes = 65536;

}  // namespace

void Holdings::Begin(const v1::Start& start, std::vector<UniqueFd> fds) {
  begun_ = true;
  start_ = start;
  node_fds_ = std::move(fds);
}

std::vector<UniqueFd> Holdings::CopiesOf(const std::vector<UniqueFd>& fds) const {
  std::vector<UniqueFd> copies;
  if (!begun_) return copies;
  for (const UniqueFd& fd : fds) copies.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  return copies;
}

void Holdings::Keep(Key key, std::vector<UniqueFd> fds) {
  std::vector<UniqueFd>& kept = fds_[key];
  for (UniqueFd& fd : fds) kept.push_back(std::move(fd));
}

void Holdings::Note(const v1::Command& command, std::vector<UniqueFd> copies) {
  if (!begun_) return;
  switch (command.command_case()) {
    case Case::kAddSegment:
      segments_.insert(command.add_segment().segment_id());
      Keep({v1::Held::SEGMENT, command.add_segment().segment_id()}, std::move(copies));
      break;
    case Case::kRemoveSegment:
      segments_.erase(command.remove_segment().segment_id());
      fds_.erase({v1::Held::SEGMENT, command.remove_segment().segment_id()});
      break;
    case Case::kAddGroup: {
      const uint64_t id = command.add_group().group_id();
      v1::HeldGroup& group = groups_[id];
      group.Clear();
      group.set_group_id(id);
      group.set_generation(command.add_group().generation());
      lost_.erase(id);
      stalled_.erase(id);
      fds_.erase({v1::Held::ARRIVALS, id});
      Keep({v1::Held::ARRIVALS, id}, std::move(copies));
      break;
    }
    case Case::kSetWorkspace:
      groups_[command.set_workspace().group_id()].set_workspace(command.set_workspace().SerializeAsString());
      break;
    case Case::kRemoveGroup: {
      const uint64_t id = command.remove_group().group_id();
      groups_.erase(id);
      lost_.erase(id);
      stalled_.erase(id);
      fds_.erase({v1::Held::ARRIVALS, id});
      for (const uint64_t plan : plans_[id]) group_of_plan_.erase(plan);
      plans_.erase(id);
      break;
    }
    case Case::kKeepPages:
      fds_.erase({v1::Held::PAGES, command.keep_pages().group_id()});
      if (!copies.empty()) Keep({v1::Held::PAGES, command.keep_pages().group_id()}, std::move(copies));
      break;
    case Case::kAddChunks:
      Keep({v1::Held::REGISTRATION, command.add_chunks().registration_id()}, std::move(copies));
      break;
    case Case::kAddRegistration:
      registrations_.insert(command.add_registration().registration_id());
      Keep({v1::Held::REGISTRATION, command.add_registration().registration_id()}, std::move(copies));
      break;
    case Case::kRemoveRegistration:
      registrations_.erase(command.remove_registration().registration_id());
      fds_.erase({v1::Held::REGISTRATION, command.remove_registration().registration_id()});
      break;
    case Case::kAddPlan:
      plans_[command.add_plan().group_id()].insert(command.add_plan().plan_id());
      group_of_plan_[command.add_plan().plan_id()] = command.add_plan().group_id();
      break;
    case Case::kRemovePlan: {
      const auto group = group_of_plan_.find(command.remove_plan().plan_id());
      if (group != group_of_plan_.end()) ForgetPlan(group->second, command.remove_plan().plan_id());
      break;
    }
    case Case::kOpenChannel:
      channels_.insert(command.open_channel().channel_id());
      Keep({v1::Held::CHANNEL, command.open_channel().channel_id()}, std::move(copies));
      break;
    case Case::kCloseChannel:
      channels_.erase(command.close_channel().channel_id());
      fds_.erase({v1::Held::CHANNEL, command.close_channel().channel_id()});
      break;
    default: break;
  }
}

void Holdings::NoteSegment(uint64_t segment_id, int fd) {
  if (!begun_) return;
  segments_.insert(segment_id);
  fds_[{v1::Held::SEGMENT, segment_id}].emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

void Holdings::ForgetPlan(uint64_t group_id, uint64_t plan_id) {
  plans_[group_id].erase(plan_id);
  group_of_plan_.erase(plan_id);
}

void Holdings::NoteLaunchDone(const v1::Message& done) {
  if (!begun_) return;
  done_.push_back(done);
  if (done_.size() > kMaxOutcomes) done_.pop_front();
}

void Holdings::NoteGroupLost(const v1::Message& lost) {
  if (begun_) lost_.try_emplace(lost.launch_failed().group_id(), lost);
}

void Holdings::NoteGroupStalled(const v1::Message& stalled) {
  if (begun_) stalled_.insert_or_assign(stalled.launch_failed().group_id(), stalled);
}

void Holdings::NoteGroupRenewed(uint64_t group_id) { stalled_.erase(group_id); }

void Holdings::SendTo(EngineLink& link) const {
  v1::Message message;
  v1::Inventory& inventory = *message.mutable_inventory();
  inventory.set_build(build_);
  for (const auto& [name, number] : HandoverVersions()) (*inventory.mutable_versions())[name] = number;
  *inventory.mutable_start() = start_;
  *inventory.mutable_ready() = ready_;
  inventory.mutable_segments()->Add(segments_.begin(), segments_.end());
  inventory.mutable_registrations()->Add(registrations_.begin(), registrations_.end());
  inventory.mutable_channels()->Add(channels_.begin(), channels_.end());
  for (const auto& [id, group] : groups_) {
    v1::HeldGroup& to = *inventory.add_groups() = group;
    to.set_group_id(id);
    if (const auto plans = plans_.find(id); plans != plans_.end())
      to.mutable_plans()->Add(plans->second.begin(), plans->second.end());
  }
  std::vector<int> raw;
  for (const UniqueFd& fd : node_fds_) raw.push_back(fd.get());
  link.Send(message, raw);
  for (const auto& [key, fds] : fds_) {
    for (size_t first = 0; first < fds.size(); first += kMaxFdsPerMessage) {
      v1::Message part;
      part.mutable_held()->set_kind(key.first);
      part.mutable_held()->set_id(key.second);
      raw.clear();
      for (size_t i = first; i < std::min(fds.size(), first + kMaxFdsPerMessage); ++i)
        raw.push_back(fds[i].get());
      link.Send(part, raw);
    }
  }
  v1::Message end;
  end.mutable_inventory_end();
  link.Send(end);
  for (const auto& [id, lost] : lost_) link.Send(lost);
  for (const auto& [id, stalled] : stalled_) link.Send(stalled);
  for (const v1::Message& done : done_) link.Send(done);
}

}  // namespace tandem::engine
