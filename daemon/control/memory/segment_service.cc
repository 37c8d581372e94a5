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

// The descriptors that engines return. Shared with the mailboxes, which may outlive a waiter that gives up.
struct MadeSegments {
  explicit MadeSegments(size_t world) : fds(world) {}
  Mutex mutex;
  std::vector<SharedFd> fds TANDEM_GUARDED_BY(mutex);
};

}  // namespace

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
  const size_t world = group.world();
  auto made = std::make_shared<MadeSegments>(world);
  auto batch = std::make_shared<CommandBatch>();
  std::vector<uint64_t> generations;
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(AwaitEngines(lock, group, waiter));
    // Its place in the quota, too: a group at its payer's limit comes back after a restart.
    if (in_place_of != nullptr && *in_place_of) {
      RemoveSet(*in_place_of);
      in_place_of->reset();
      registry.Touch(group);
    }
    TANDEM_RETURN_IF_ERROR(registry.ledger.Check(set->payer, Resource::kDescriptors, world));
    TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(set->payer, Resource::kSegmentBytes, set->bytes * world));
    TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(set->payer, Resource::kDescriptors, world));
    for (size_t rank = 0; rank < world; ++rank) {
      const int gpu = group.gpus[rank];
      const uint64_t id = registry.next_id++;
      set->segment_ids.push_back(id);
      set->mapped.push_back(1u << gpu);
      generations.push_back(registry.GenerationOf(gpu));
      registry.MailboxOf(gpu).PostAllocate(
          id, set->bytes,
          [made, rank](SharedFd fd) {
            MutexLock guard(made->mutex);
            made->fds[rank] = std::move(fd);
          },
          batch);
    }
  }
  Status status = batch->Wait(waiter);
  auto mapped = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    for (size_t rank = 0; status.ok() && rank < world; ++rank) {
      if (registry.GenerationOf(set->gpus[rank]) == generations[rank]) continue;
      status = Unavailable("the engine of GPU " + std::to_string(set->gpus[rank]) + " ended meanwhile")
                   .WithDetail(BlameGpu("ENGINE_DOWN", set->gpus[rank]));
    }
    registry.sets.insert(set);
    registry.Touch(*set);
    {
      MutexLock guard(made->mutex);
      set->fds = made->fds;
    }
    set->allocator = OffsetAllocator(set->bytes);
    if (!status.ok()) {
      RemoveSet(set);
      return status.WithContext("no " + purpose + " segment of " + std::to_string(set->bytes) + " bytes");
    }
    for (size_t rank = 0; rank < world && !for_clients; ++rank) MapSet(*set, rank, group, mapped);
  }
  status = mapped->Wait(waiter);
  if (!status.ok()) {
    RegistryLock lock(registry);
    RemoveSet(set);
    return status;
  }
  return set;
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
  for (size_t rank = 0; rank < set->segment_ids.size(); ++rank) {
    engine::v1::Command command;
    command.mutable_remove_segment()->set_segment_id(set->segment_ids[rank]);
    for (size_t gpu = 0; gpu < registry.mailboxes.size(); ++gpu) {
      if (set->mapped[rank] & (1u << gpu)) registry.MailboxOf(static_cast<int>(gpu)).Post(command);
    }
  }
  registry.ledger.Refund(set->payer, Resource::kSegmentBytes, set->bytes * set->segment_ids.size());
  registry.ledger.Refund(set->payer, Resource::kDescriptors, set->segment_ids.size());
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
