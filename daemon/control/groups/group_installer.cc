#include "daemon/control/groups/group_installer.h"

#include <algorithm>
#include <utility>

#include "daemon/control/base/blame.h"
#include "daemon/control/base/capabilities.h"
#include "ipc/arrival_table.h"

namespace tandem::daemon {
namespace {

// The control segment of each rank: signal words and packets, the abort word, and the scratch area of NCCL's
// stand-in.
constexpr uint64_t kAbortOffset = plan::kSignalAreaBytes;
constexpr uint64_t kScratchOffset = kAbortOffset + 4096;
// Whole granules of a GPU's memory, with half a granule or more of scratch.
constexpr uint64_t kGranule = uint64_t{2} << 20;
constexpr uint64_t kControlBytes = (kScratchOffset + kGranule / 2 + kGranule - 1) / kGranule * kGranule;

}  // namespace

Status GroupInstaller::AwaitInstalled(RegistryLock& lock, const GroupRecord& group, const Waiter& waiter) {
  Registry& registry = core_.registry;
  Status held_down;
  const bool settled = waiter.Wait(lock, registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
    if (group.state() != GroupState::kSuspended || registry.stopping) return true;
    for (const int gpu : group.gpus) {
      if (registry.GenerationOf(gpu) == 0) held_down = core_.CheckCrashLoop(gpu);
      if (!held_down.ok()) return true;
    }
    return false;
  });
  if (!held_down.ok()) return held_down.WithContext("group '" + group.name + "'");
  if (settled) return Installed(group);
  if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
  Status restarting = Installed(group);
  if (restarting.ok()) return restarting;
  return Status(Code::kDeadlineExceeded, "an engine of group '" + group.name + "' is restarting",
                restarting.detail());
}

Status GroupInstaller::Installed(const GroupRecord& group) const {
  if (core_.registry.stopping) return Unavailable("the daemon is stopping");
  if (group.state() == GroupState::kReady) return Status::Ok();
  if (group.state() == GroupState::kAsleep) {
    return FailedPrecondition("group '" + group.name + "' sleeps until all its ranks resume it")
        .WithDetail({.reason = "SUSPENDED", .started = false});
  }
  if (group.state() != GroupState::kSuspended) {
    return group.lifecycle.why().ok() ? Unavailable("group '" + group.name + "' has ended")
                                      : group.lifecycle.why();
  }
  int down = group.gpus[0];
  for (const int gpu : group.gpus) {
    if (core_.registry.GenerationOf(gpu) == 0) down = gpu;
  }
  return Status(Code::kUnavailable, "an engine of group '" + group.name + "' is restarting; ask again",
                BlameGpu("ENGINE_DOWN", down));
}

Waiter GroupInstaller::ForAllRanks(std::shared_ptr<GroupRecord> group, Waiter::Clock::time_point deadline) {
  return Waiter{deadline, [group = std::move(group)] { return group->lifecycle.Over(); }};
}

Result<std::unique_lock<TimedLock>> GroupInstaller::TakeWork(GroupRecord& group, const Waiter& waiter) {
  std::unique_lock work(group.work, waiter.deadline);
  if (work.owns_lock()) return work;
  return Status(Code::kDeadlineExceeded,
                "group '" + group.name + "' is busy with other plans or memory, or being restored",
                {.reason = "GROUP_BUSY", .who = {}, .field = {}});
}

bool GroupInstaller::SameEngines(const GroupRecord& group) const {
  for (size_t rank = 0; rank < group.world(); ++rank) {
    if (core_.registry.GenerationOf(group.gpus[rank]) != group.engines[rank]) return false;
  }
  return true;
}

std::map<uint64_t, uint64_t> GroupInstaller::CountLaunches(GroupRecord& group) {
  std::map<uint64_t, uint64_t> counts;
  if (!group.arrivals) return counts;
  const int world = static_cast<int>(group.world());
  const Result<ArrivalTable> old = ArrivalTable::Map(group.arrivals->get(), world);
  const auto most_launches = [&](uint32_t index) {
    uint64_t most = 0;
    for (int rank = 0; old.ok() && rank < world; ++rank) most = std::max(most, old->Count(index, rank));
    return most;
  };
  for (const auto& [id, plan] : group.plans) counts[id] = most_launches(plan.index);
  for (uint32_t index = 0; index < group.next_plan_index; ++index)
    group.next_launch_number += most_launches(index);
  return counts;
}

engine::v1::Command GroupInstaller::AddGroupCommand(const GroupRecord& group, const SegmentSet& control,
                                                    size_t rank, const std::string& unique_id) const {
  const bool has_stand_in = !SharedCapabilities(core_.engines, group.gpus).communicators;
  engine::v1::Command command;
  engine::v1::AddGroup& add = *command.mutable_add_group();
  add.set_group_id(group.id);
  add.set_rank(static_cast<uint32_t>(rank));
  add.set_world_size(static_cast<uint32_t>(group.world()));
  for (size_t peer = 0; peer < group.world(); ++peer) {
    add.add_gpus(static_cast<uint32_t>(group.gpus[peer]));
    add.add_signal_segments(control.segment_ids[peer]);
    add.add_signal_offsets(0);
    if (!has_stand_in) continue;
    add.add_scratch_segments(control.segment_ids[peer]);
    add.add_scratch_offsets(kScratchOffset);
  }
  if (has_stand_in) add.set_scratch_bytes(control.bytes - kScratchOffset);
  add.set_nccl_unique_id(unique_id);
  add.mutable_options()->insert(group.options.begin(), group.options.end());
  add.set_deadline_ms(group.launch_deadline_ms);
  add.set_next_launch_number(group.next_launch_number);
  add.set_abort_segment(control.segment_ids[rank]);
  add.set_abort_offset(kAbortOffset);
  add.set_generation(group.generation);
  add.set_session_id(group.members[rank].session_id);
  add.set_stalls(group.RenewsEngines());
  add.set_ordered(group.IsOrdered());
  add.set_renewals(group.engine_renewals);
  return command;
}

Status GroupInstaller::Install(GroupRecord& group, const Waiter& waiter) {
  Registry& registry = core_.registry;
  // The engines that knew the old control segments have been asked to forget the group before (Uninstall).
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<SegmentSet> control,
                          segments_.MakeSet(group, kControlBytes, "control", waiter, &group.control));
  std::string unique_id;
  Result<UniqueFd> table = CreateArrivalTable(static_cast<int>(group.world()), kMaxPlanIndexes);
  Status status = table.status();
  if (status.ok() && group.communicates) {
    Result<std::string> id = MakeUniqueId(group);
    status = id.status();
    if (id.ok()) unique_id = std::move(*id);
  }
  auto batch = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    if (status.ok() && !registry.Has(group)) status = Unavailable("group '" + group.name + "' has ended");
    if (!status.ok()) {
      segments_.RemoveSet(control);
      return status;
    }
    std::map<uint64_t, uint64_t> counts = CountLaunches(group);
    group.engines.clear();
    for (const int gpu : group.gpus) group.engines.push_back(registry.GenerationOf(gpu));
    // Workspaces and tensors of the group are segments that the engines hold already
    // (SegmentService::SendAgain).
    registry.Touch(group);
    group.control = control;
    group.arrivals = std::make_shared<const UniqueFd>(std::move(*table));
    for (size_t rank = 0; rank < group.world(); ++rank) {
      registry.MailboxOf(group.gpus[rank])
          .Post(AddGroupCommand(group, *control, rank, unique_id), {group.arrivals}, batch);
    }
    if (group.half_bytes + group.bulk_bytes > 0) PostWorkspace(group, batch);
    for (const auto& [id, tensor] : group.tensors) PostRegistration(group, id, batch);
    for (const auto& [id, plan] : group.plans) {
      if (plan.client) continue;
      for (size_t rank = 0; rank < group.world(); ++rank) {
        engine::v1::Command command;
        command.ParseFromString(plan.commands[rank]);
        command.mutable_add_plan()->set_next_count(counts[id]);
        registry.MailboxOf(group.gpus[rank]).Post(std::move(command), {}, batch);
      }
    }
  }
  return batch->Wait(waiter);
}

Result<std::string> GroupInstaller::MakeUniqueId(const GroupRecord& group) {
  return core_.engines.MakeUniqueId(group.gpus[0]);
}

void GroupInstaller::Uninstall(GroupRecord& group, int except_gpu) {
  for (const int gpu : group.gpus) {
    if (gpu == except_gpu) continue;
    EngineMailbox& mailbox = core_.registry.MailboxOf(gpu);
    for (const auto& [id, plan] : group.plans) {
      if (plan.client) continue;
      engine::v1::Command command;
      command.mutable_remove_plan()->set_plan_id(id);
      mailbox.Post(std::move(command));
    }
    for (const auto& [id, tensor] : group.tensors) {
      engine::v1::Command command;
      command.mutable_remove_registration()->set_registration_id(id);
      mailbox.Post(std::move(command));
    }
    engine::v1::Command command;
    command.mutable_remove_group()->set_group_id(group.id);
    mailbox.Post(std::move(command));
  }
}

void GroupInstaller::PostWorkspace(GroupRecord& group, const std::shared_ptr<CommandBatch>& batch) {
  engine::v1::Command command;
  engine::v1::SetWorkspace& message = *command.mutable_set_workspace();
  message.set_group_id(group.id);
  for (size_t rank = 0; rank < group.world(); ++rank) {
    if (group.half0) {
      message.add_half0_segments(group.half0->segment_ids[rank]);
      message.add_half0_offsets(0);
      message.add_half1_segments(group.half1->segment_ids[rank]);
      message.add_half1_offsets(0);
    }
    if (group.bulk) {
      message.add_bulk_segments(group.bulk->segment_ids[rank]);
      message.add_bulk_offsets(0);
    }
  }
  message.set_half_bytes(group.half_bytes);
  message.set_bulk_bytes(group.bulk_bytes);
  core_.registry.PostToAll(group, command, batch);
}

void GroupInstaller::PostRegistration(GroupRecord& group, uint64_t registration_id,
                                      const std::shared_ptr<CommandBatch>& batch) {
  const GroupTensor& tensor = group.tensors[registration_id];
  engine::v1::Command command;
  engine::v1::AddRegistration& message = *command.mutable_add_registration();
  message.set_registration_id(registration_id);
  message.set_group_id(group.id);
  message.set_bytes(tensor.bytes);
  for (const auto& own : tensor.tensors) {
    message.add_segments(own->block->set->segment_ids[static_cast<size_t>(own->block_rank)]);
    message.add_offsets(own->block->offset);
  }
  core_.registry.PostToAll(group, command, batch);
}

}  // namespace tandem::daemon
