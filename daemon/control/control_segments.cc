// Segments and what the engines must hold of a group: made at its first installation, and again after a
// restart.
#include <algorithm>

#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "ipc/arrival_table.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kGranularity = uint64_t{2} << 20;  // of exportable GPU memory
// The control segment of each rank: signal words and packets, the abort word, and the scratch area of NCCL's
// stand-in.
constexpr uint64_t kControlBytes = kGranularity;
constexpr uint64_t kSignalBytes = plan::kSignalAreaBytes;
constexpr uint64_t kAbortOffset = kSignalBytes;
constexpr uint64_t kScratchOffset = kSignalBytes + 4096;

}  // namespace

Status Control::AwaitEnginesLocked(Lock& lock, const Group& group, const Waiter& waiter) {
  const auto down = [&]() -> int {
    for (const Member& member : group.members) {
      if (registry_->engine_generation[static_cast<size_t>(member.gpu)] == 0) return member.gpu;
    }
    return -1;
  };
  const bool over = !waiter.Wait(lock, registry_->engines_changed,
                                 [&] { return down() < 0 || !group.broken.ok() || registry_->stopping; });
  if (registry_->stopping) return Unavailable("the daemon is stopping");
  if (!group.broken.ok()) return group.broken;  // nobody else would end a wait for an engine that stays away
  if (!over) return Status::Ok();
  const std::string gpu = std::to_string(down());
  return Status(Code::kDeadlineExceeded,
                "group '" + group.name + "' waits for the engine of GPU " + gpu + ", which is not running",
                {.reason = "ENGINE_DOWN", .who = "gpu " + gpu, .field = {}});
}

Status Control::AwaitInstalledLocked(Lock& lock, const Group& group, const Waiter& waiter) {
  if (!waiter.Wait(lock, registry_->engines_changed, [&] {
        return !group.suspended || group.state != GroupState::kReady || registry_->stopping;
      })) {
    if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
    return Status(Code::kDeadlineExceeded, "an engine of group '" + group.name + "' is restarting",
                  {.reason = "ENGINE_DOWN", .who = {}, .field = {}});
  }
  return InstalledLocked(group);
}

Status Control::InstalledLocked(const Group& group) const {
  if (registry_->stopping) return Unavailable("the daemon is stopping");
  if (group.state != GroupState::kReady) {
    return group.broken.ok() ? Unavailable("group '" + group.name + "' has ended") : group.broken;
  }
  if (!group.suspended) return Status::Ok();
  return Status(Code::kUnavailable, "an engine of group '" + group.name + "' is restarting; ask again",
                {.reason = "ENGINE_DOWN", .who = {}, .field = {}});
}

Waiter Control::ForAllRanks(std::shared_ptr<Group> group, Waiter::Clock::time_point deadline) {
  return Waiter{deadline, [group = std::move(group)] { return group->over.load(); }};
}

Result<std::unique_lock<TimedLock>> Control::TakeWork(Group& group, const Waiter& waiter) {
  std::unique_lock work(group.work, waiter.deadline);
  if (work.owns_lock()) return work;
  return Status(Code::kDeadlineExceeded,
                "group '" + group.name + "' is busy with other plans or memory, or being restored",
                {.reason = "GROUP_BUSY", .who = {}, .field = {}});
}

Result<std::shared_ptr<SegmentSet>> Control::MakeSet(Group& group, uint64_t bytes, const std::string& purpose,
                                                     const Waiter& waiter,
                                                     std::shared_ptr<SegmentSet>* in_place_of) {
  auto set = std::make_shared<SegmentSet>();
  set->purpose = purpose;
  set->group_id = group.id;
  set->payer = group.payer;
  set->bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const size_t world = group.members.size();
  const uint64_t charged = set->bytes * world;
  // Shared with the mailboxes, which may outlive a waiter that gives up.
  struct Made {
    std::mutex mutex;
    std::vector<SharedFd> fds;
  };
  auto made = std::make_shared<Made>();
  made->fds.resize(world);
  auto batch = std::make_shared<CommandBatch>();
  std::vector<uint64_t> generations;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(AwaitEnginesLocked(lock, group, waiter));
    // Its place in the quota, too: a group at its payer's limit comes back after a restart.
    if (in_place_of != nullptr && *in_place_of) {
      RemoveSetLocked(*in_place_of);
      in_place_of->reset();
    }
    Ledger& ledger = registry_->ledger;
    TANDEM_RETURN_IF_ERROR(ledger.Check(set->payer, Resource::kDescriptors, world));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(set->payer, Resource::kSegmentBytes, charged));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(set->payer, Resource::kDescriptors, world));
    for (size_t rank = 0; rank < world; ++rank) {
      const int gpu = group.members[rank].gpu;
      const uint64_t id = registry_->next_id++;
      set->gpus.push_back(gpu);
      set->segment_ids.push_back(id);
      set->mapped.push_back(1u << gpu);
      generations.push_back(registry_->engine_generation[static_cast<size_t>(gpu)]);
      registry_->mailboxes[static_cast<size_t>(gpu)]->PostAllocate(
          id, set->bytes,
          [made, rank](SharedFd fd) {
            std::lock_guard guard(made->mutex);
            made->fds[rank] = std::move(fd);
          },
          batch);
    }
  }
  Status status = batch->Wait(waiter);
  auto mapped = std::make_shared<CommandBatch>();
  {
    Lock lock(registry_->mutex);
    for (size_t rank = 0; status.ok() && rank < world; ++rank) {
      if (registry_->engine_generation[static_cast<size_t>(set->gpus[rank])] != generations[rank]) {
        status = Unavailable("the engine of GPU " + std::to_string(set->gpus[rank]) + " ended meanwhile")
                     .WithDetail({.reason = "ENGINE_DOWN", .who = {}, .field = {}});
      }
    }
    registry_->sets.insert(set);
    {
      std::lock_guard guard(made->mutex);
      set->fds = made->fds;
    }
    set->allocator = OffsetAllocator(set->bytes);
    if (!status.ok()) {
      RemoveSetLocked(set);
      return status.WithContext("no " + purpose + " segment of " + std::to_string(set->bytes) + " bytes");
    }
    for (size_t rank = 0; rank < world; ++rank) MapSetLocked(*set, rank, group, mapped);
  }
  status = mapped->Wait(waiter);
  if (!status.ok()) {
    Lock lock(registry_->mutex);
    RemoveSetLocked(set);
    return status;
  }
  return set;
}

void Control::MapSetLocked(SegmentSet& set, size_t rank, const Group& group,
                           const std::shared_ptr<CommandBatch>& batch) {
  for (const Member& member : group.members) {
    const uint32_t bit = 1u << member.gpu;
    if (set.mapped[rank] & bit) continue;
    set.mapped[rank] |= bit;
    engine::v1::Command command;
    command.mutable_add_segment()->set_segment_id(set.segment_ids[rank]);
    command.mutable_add_segment()->set_bytes(set.bytes);
    registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(std::move(command), {set.fds[rank]}, batch);
  }
}

void Control::RemoveSetLocked(const std::shared_ptr<SegmentSet>& set) {
  if (registry_->sets.erase(set) == 0) return;
  for (size_t rank = 0; rank < set->segment_ids.size(); ++rank) {
    engine::v1::Command command;
    command.mutable_remove_segment()->set_segment_id(set->segment_ids[rank]);
    for (size_t gpu = 0; gpu < registry_->mailboxes.size(); ++gpu) {
      if (set->mapped[rank] & (1u << gpu)) registry_->mailboxes[gpu]->Post(command);
    }
  }
  registry_->ledger.Refund(set->payer, Resource::kSegmentBytes, set->bytes * set->segment_ids.size());
  registry_->ledger.Refund(set->payer, Resource::kDescriptors, set->segment_ids.size());
}

void Control::DropSetIfUnusedLocked(const std::shared_ptr<SegmentSet>& set) {
  if (!set->owned && set->allocator.empty()) RemoveSetLocked(set);
}

bool Control::SameEnginesLocked(const Group& group) const {
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    if (registry_->engine_generation[static_cast<size_t>(group.members[rank].gpu)] != group.engines[rank])
      return false;
  }
  return true;
}

Status Control::Install(Group& group, const Waiter& waiter) {
  // The engines that knew the old control segments have been told to forget the group before
  // (UninstallLocked).
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<SegmentSet> control,
                          MakeSet(group, kControlBytes, "control", waiter, &group.control));
  const int world = static_cast<int>(group.members.size());
  const bool has_stand_in = options_.backend == "host";
  std::string unique_id;
  if (group.communicates) {
    Result<std::string> made = MakeUniqueId(group);
    if (!made.ok()) {
      Lock lock(registry_->mutex);
      RemoveSetLocked(control);
      return made.status();
    }
    unique_id = std::move(*made);
  }
  auto batch = std::make_shared<CommandBatch>();
  // The launches made so far, by plan: counts and epochs go on in the next generation, so that the node's
  // order log never names two launches alike.
  std::map<uint64_t, uint64_t> counts;
  uint64_t launches = 0;
  {
    Lock lock(registry_->mutex);
    if (group.arrivals) {
      Result<ArrivalTable> old = ArrivalTable::Map(group.arrivals->get(), world);
      const auto most_launches = [&](uint32_t index) {
        uint64_t most = 0;
        for (int rank = 0; old.ok() && rank < world; ++rank) most = std::max(most, old->Count(index, rank));
        return most;
      };
      for (const auto& [id, plan] : group.plans) counts[id] = most_launches(plan.index);
      for (uint32_t index = 0; index < group.next_plan_index; ++index) launches += most_launches(index);
    }
    group.next_epoch += launches;
  }
  Result<UniqueFd> table = CreateArrivalTable(world, kMaxPlanIndexes);
  if (!table.ok()) {
    Lock lock(registry_->mutex);
    RemoveSetLocked(control);
    return table.status();
  }
  {
    Lock lock(registry_->mutex);
    if (!registry_->Has(group)) {
      RemoveSetLocked(control);
      return Unavailable("group '" + group.name + "' has ended");
    }
    group.engines.clear();
    for (const Member& member : group.members) {
      group.engines.push_back(registry_->engine_generation[static_cast<size_t>(member.gpu)]);
    }
    // Workspaces and tensors of the group are segments that the engines hold already (OnEngineUp sees to
    // that).
    group.control = control;
    group.arrivals = std::make_shared<const UniqueFd>(std::move(*table));
    for (int rank = 0; rank < world; ++rank) {
      engine::v1::Command command;
      engine::v1::AddGroup& add = *command.mutable_add_group();
      add.set_group_id(group.id);
      add.set_rank(static_cast<uint32_t>(rank));
      add.set_world_size(static_cast<uint32_t>(world));
      for (int peer = 0; peer < world; ++peer) {
        add.add_gpus(static_cast<uint32_t>(group.members[static_cast<size_t>(peer)].gpu));
        add.add_signal_segments(control->segment_ids[static_cast<size_t>(peer)]);
        add.add_signal_offsets(0);
        if (!has_stand_in) continue;
        add.add_scratch_segments(control->segment_ids[static_cast<size_t>(peer)]);
        add.add_scratch_offsets(kScratchOffset);
      }
      if (has_stand_in) add.set_scratch_bytes(control->bytes - kScratchOffset);
      add.set_nccl_unique_id(unique_id);
      add.mutable_options()->insert(group.options.begin(), group.options.end());
      add.set_deadline_ms(group.launch_deadline_ms);
      add.set_next_epoch(group.next_epoch);
      add.set_abort_segment(control->segment_ids[static_cast<size_t>(rank)]);
      add.set_abort_offset(kAbortOffset);
      add.set_generation(group.generation);
      add.set_session_id(group.members[static_cast<size_t>(rank)].session_id);
      registry_->mailboxes[static_cast<size_t>(group.members[static_cast<size_t>(rank)].gpu)]->Post(
          std::move(command), {group.arrivals}, batch);
    }
    if (group.half_bytes + group.bulk_bytes > 0) PostWorkspaceLocked(group, batch);
    for (const auto& [id, tensor] : group.tensors) PostRegistrationLocked(group, id, batch);
    for (const auto& [id, plan] : group.plans) {
      for (int rank = 0; rank < world; ++rank) {
        engine::v1::Command command;
        command.ParseFromString(plan.commands[static_cast<size_t>(rank)]);
        command.mutable_add_plan()->set_next_count(counts[id]);
        registry_->mailboxes[static_cast<size_t>(group.members[static_cast<size_t>(rank)].gpu)]->Post(
            std::move(command), {}, batch);
      }
    }
  }
  return batch->Wait(waiter);
}

// What the ranks' communicators are made from; the engine of rank 0 stands for it. Without the lock.
Result<std::string> Control::MakeUniqueId(const Group& group) {
  return engines_.MakeUniqueId(group.members[0].gpu);
}

// Takes the group off its engines; the one of `except_gpu` has gone. Commands are executed in order, so lanes
// have drained before segments are removed.
void Control::UninstallLocked(Group& group, int except_gpu) {
  for (const Member& member : group.members) {
    if (member.gpu == except_gpu) continue;
    EngineMailbox& mailbox = *registry_->mailboxes[static_cast<size_t>(member.gpu)];
    for (const auto& [id, plan] : group.plans) {
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

void Control::PostWorkspaceLocked(Group& group, const std::shared_ptr<CommandBatch>& batch) {
  engine::v1::Command command;
  engine::v1::SetWorkspace& message = *command.mutable_set_workspace();
  message.set_group_id(group.id);
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
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
  for (const Member& member : group.members) {
    registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command, {}, batch);
  }
}

void Control::PostRegistrationLocked(Group& group, uint64_t registration_id,
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
  for (const Member& member : group.members) {
    registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command, {}, batch);
  }
}

}  // namespace tandem::daemon
