#include "daemon/control/memory/segment_service.h"

#include <fcntl.h>

#include <utility>
#include <vector>

#include "common/mutex.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/capabilities.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kGranularity = uint64_t{2} << 20;  // of exportable GPU memory

}  // namespace

struct SegmentService::Making {
  explicit Making(size_t world) : fds(world) {}
  Mutex mutex;
  std::vector<SharedFd> fds TANDEM_GUARDED_BY(mutex);
  std::vector<uint64_t> generations;  // by rank: of the engine that was asked
  const std::shared_ptr<CommandBatch> batch = std::make_shared<CommandBatch>();
};

Status SegmentService::AwaitEngines(RegistryLock& lock, const GroupRecord& group, const Waiter& waiter) {
  Registry& registry = core_.registry;
  int down = -1;
  Status held_down;
  const bool over = !waiter.Wait(lock, registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
    down = -1;
    for (const int gpu : group.gpus) {
      if (registry.GenerationOf(gpu) != 0) continue;
      if (down < 0) down = gpu;
      held_down = core_.CheckCrashLoop(gpu);
      if (!held_down.ok()) return true;
    }
    return down < 0 || !group.lifecycle.why().ok() || registry.stopping;
  });
  if (registry.stopping) return Unavailable("the daemon is stopping");
  // Nobody else would end a wait for an engine that stays away.
  if (!group.lifecycle.why().ok()) return group.lifecycle.why();
  if (!held_down.ok()) return held_down.WithContext("group '" + group.name + "'");
  if (!over) return Status::Ok();
  return Status(Code::kDeadlineExceeded,
                "group '" + group.name + "' waits for the engine of GPU " + std::to_string(down) +
                    ", which is not running",
                BlameGpu("ENGINE_DOWN", down));
}

Result<std::shared_ptr<SegmentSet>> SegmentService::MakeSet(GroupRecord& group, uint64_t bytes,
                                                            const std::string& purpose, const Waiter& waiter,
                                                            std::shared_ptr<SegmentSet>* in_place_of,
                                                            bool for_clients) {
  Registry& registry = core_.registry;
  auto set = std::make_shared<SegmentSet>();
  set->purpose = purpose;
  set->group_id = group.id;
  set->for_clients = for_clients;
  set->payer = group.payer;
  set->bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  set->gpus = group.gpus;
  std::shared_ptr<Making> making;
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(AwaitEngines(lock, group, waiter));
    // Its place in the quota, too: a group at its payer's limit comes back after a restart.
    if (in_place_of != nullptr && *in_place_of) {
      RemoveSet(*in_place_of);
      in_place_of->reset();
      registry.Touch(group);
    }
    for (size_t rank = 0; rank < group.world(); ++rank) set->segment_ids.push_back(registry.next_id++);
    TANDEM_ASSIGN_OR_RETURN(making, BeginMemory(*set));
    set->allocator = OffsetAllocator(set->bytes);
    registry.sets.insert(set);
    registry.Touch(*set);
  }
  const Status status = EndMemory(*making, group, set, waiter);
  if (status.ok()) return set;
  RegistryLock lock(registry);
  RemoveSet(set);
  return status;
}

Result<std::shared_ptr<SegmentService::Making>> SegmentService::BeginMemory(SegmentSet& set) {
  Registry& registry = core_.registry;
  const size_t world = set.gpus.size();
  TANDEM_RETURN_IF_ERROR(registry.ledger.Check(set.payer, Resource::kDescriptors, world));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(set.payer, Resource::kSegmentBytes, set.bytes * world));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(set.payer, Resource::kDescriptors, world));
  set.dropped = false;
  set.mapped.clear();
  set.fds.assign(world, nullptr);
  registry.Touch(set);
  auto making = std::make_shared<Making>(world);
  for (size_t rank = 0; rank < world; ++rank) {
    const int gpu = set.gpus[rank];
    set.mapped.push_back(1u << gpu);
    making->generations.push_back(registry.GenerationOf(gpu));
    registry.MailboxOf(gpu).PostAllocate(
        set.segment_ids[rank], set.bytes,
        [making, rank](SharedFd fd) {
          MutexLock guard(making->mutex);
          making->fds[rank] = std::move(fd);
        },
        making->batch);
  }
  return making;
}

Status SegmentService::EndMemory(Making& making, const GroupRecord& group,
                                 const std::shared_ptr<SegmentSet>& set, const Waiter& waiter) {
  Registry& registry = core_.registry;
  Status status = making.batch->Wait(waiter);
  auto mapped = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    const size_t world = set->gpus.size();
    for (size_t rank = 0; status.ok() && rank < world; ++rank) {
      if (registry.GenerationOf(set->gpus[rank]) == making.generations[rank]) continue;
      status = Unavailable("the engine of GPU " + std::to_string(set->gpus[rank]) + " ended meanwhile")
                   .WithDetail(BlameGpu("ENGINE_DOWN", set->gpus[rank]));
    }
    registry.Touch(*set);
    {
      MutexLock guard(making.mutex);
      set->fds = making.fds;
    }
    if (!status.ok()) {
      return status.WithContext("no " + set->purpose + " segment of " + std::to_string(set->bytes) +
                                " bytes");
    }
    for (size_t rank = 0; rank < world && !set->for_clients; ++rank) MapSet(*set, rank, group, mapped);
  }
  return mapped->Wait(waiter);
}

Status SegmentService::MakeMemory(GroupRecord& group, const std::shared_ptr<SegmentSet>& set,
                                  const Waiter& waiter) {
  std::shared_ptr<Making> making;
  {
    RegistryLock lock(core_.registry);
    if (!set->dropped) return Status::Ok();
    TANDEM_RETURN_IF_ERROR(AwaitEngines(lock, group, waiter));
    TANDEM_ASSIGN_OR_RETURN(making, BeginMemory(*set));
  }
  Status status = EndMemory(*making, group, set, waiter);
  if (status.ok()) return status;
  RegistryLock lock(core_.registry);
  DropMemory(*set);
  return status;
}

void SegmentService::MapSet(SegmentSet& set, size_t rank, const GroupRecord& group,
                            const std::shared_ptr<CommandBatch>& batch) {
  for (const int gpu : group.gpus) {
    const uint32_t bit = 1u << gpu;
    if (set.mapped[rank] & bit) continue;
    set.mapped[rank] |= bit;
    core_.registry.Touch(set);
    engine::v1::Command command;
    command.mutable_add_segment()->set_segment_id(set.segment_ids[rank]);
    command.mutable_add_segment()->set_bytes(set.bytes);
    core_.registry.MailboxOf(gpu).Post(std::move(command), {set.fds[rank]}, batch);
  }
}

void SegmentService::RemoveSet(const std::shared_ptr<SegmentSet>& set) {
  Registry& registry = core_.registry;
  if (registry.sets.erase(set) == 0) return;
  registry.Touch(*set);
  DropMemory(*set);
}

void SegmentService::DropMemory(SegmentSet& set) {
  Registry& registry = core_.registry;
  if (set.dropped) return;
  set.dropped = true;
  for (size_t rank = 0; rank < set.segment_ids.size(); ++rank) {
    engine::v1::Command command;
    command.mutable_remove_segment()->set_segment_id(set.segment_ids[rank]);
    for (size_t gpu = 0; gpu < registry.mailboxes.size(); ++gpu) {
      if (set.mapped[rank] & (1u << gpu)) registry.MailboxOf(static_cast<int>(gpu)).Post(command);
    }
  }
  set.mapped.assign(set.segment_ids.size(), 0);
  set.fds.assign(set.segment_ids.size(), nullptr);
  registry.Touch(set);
  registry.ledger.Refund(set.payer, Resource::kSegmentBytes, set.bytes * set.segment_ids.size());
  registry.ledger.Refund(set.payer, Resource::kDescriptors, set.segment_ids.size());
}

void SegmentService::DropSetIfUnused(const std::shared_ptr<SegmentSet>& set) {
  if (!set->owned && set->allocator.empty()) RemoveSet(set);
}

// A memfd gives its pages back; device memory is cleared by its engine, to which commands go in order: before
// anybody learns of the block's next use.
void SegmentService::ClearBlock(const SegmentSet& set, uint64_t offset, uint64_t bytes) {
  for (size_t rank = 0; rank < set.fds.size(); ++rank) {
    if (!set.fds[rank]) continue;
    if (!core_.engines.StatusOf(set.gpus[rank]).capabilities.on_gpu) {
      ::fallocate(set.fds[rank]->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset), static_cast<off_t>(bytes));
      continue;
    }
    engine::v1::Command command;
    command.mutable_clear_memory()->set_segment_id(set.segment_ids[rank]);
    command.mutable_clear_memory()->set_offset(offset);
    command.mutable_clear_memory()->set_bytes(bytes);
    core_.registry.MailboxOf(set.gpus[rank]).Post(std::move(command));
  }
}

void SegmentService::SendAgain(int gpu) {
  for (const auto& set : core_.registry.sets) {
    for (size_t rank = 0; rank < set->segment_ids.size(); ++rank) {
      if (!(set->mapped[rank] & (1u << gpu)) || !set->fds[rank]) continue;
      if (set->for_clients) {
        set->mapped[rank] &= ~(1u << gpu);
        core_.registry.Touch(*set);
        continue;
      }
      engine::v1::Command command;
      command.mutable_add_segment()->set_segment_id(set->segment_ids[rank]);
      command.mutable_add_segment()->set_bytes(set->bytes);
      core_.registry.MailboxOf(gpu).Post(std::move(command), {set->fds[rank]});
    }
  }
}

}  // namespace tandem::daemon
