#include "daemon/control/tensors/tensor_service.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/control/base/blame.h"
#include "daemon/control/base/validate.h"

namespace tandem::daemon {
namespace {

// A group's symmetric segments double up to this size; a larger tensor gets a separate segment.
constexpr uint64_t kLargestStep = uint64_t{64} << 20;
constexpr uint64_t kSmallestStep = uint64_t{2} << 20;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + OffsetAllocator::kAlignment - 1) / OffsetAllocator::kAlignment *
         OffsetAllocator::kAlignment;
}

std::string NameOf(const GroupRecord& group) { return "rendezvous in group '" + group.name + "'"; }

Status FreedMeanwhile(const GroupRecord& group, size_t rank) {
  return FailedPrecondition(NameOf(group) + ": rank " + std::to_string(rank) + " freed its tensor meanwhile")
      .WithDetail(BlameRank("TENSOR_FREED", static_cast<int>(rank), "tensor_id"));
}

}  // namespace

Status CheckOpenBarriers(const ControlLimits& limits, const GroupRecord& group, size_t open) {
  const uint64_t limit = limits.rendezvous_per_group;
  if (open < limit) return Status::Ok();
  return ResourceExhausted("group '" + group.name + "' has " + std::to_string(open) +
                           " rendezvous that not all ranks have come to")
      .WithDetail({.reason = "QUOTA_RENDEZVOUS",
                   .who = "group " + std::to_string(group.id),
                   .field = {},
                   .limit = static_cast<long long>(limit),
                   .usage = static_cast<long long>(open)});
}

Result<v1::EmptyReply> TensorService::Empty(const SessionRef& session, const v1::EmptyRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const uint64_t bytes, ParseEmpty(request));
  TANDEM_ASSIGN_OR_RETURN(const int gpu, core_.UseGpu(*session, request.gpu_uuid()));
  v1::EmptyReply reply;
  reply.set_bytes(bytes);
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  const std::string name = std::to_string(gpu) + "/" + request.persistent_name();
  if (!request.persistent_name().empty()) {
    if (const auto it = session->named_tensors.find(name); it != session->named_tensors.end()) {
      const TensorRecord& tensor = *session->tensors[it->second];
      if (tensor.bytes != bytes) {
        return InvalidArgument("persistent tensor '" + request.persistent_name() + "' has " +
                               std::to_string(tensor.bytes) + " bytes, not " + std::to_string(bytes))
            .WithDetail({.reason = "NAME_MISMATCH", .who = {}, .field = "spec"});
      }
      reply.set_tensor_id(tensor.id);
      return reply;
    }
  }
  TANDEM_RETURN_IF_ERROR(registry.ledger.Check(session->payer(), Resource::kSegmentBytes, bytes));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(session->payer(), Resource::kTensors, 1));
  auto tensor = std::make_shared<TensorRecord>();
  tensor->id = registry.next_id++;
  tensor->session_id = session->id;
  tensor->gpu = gpu;
  tensor->bytes = bytes;
  tensor->name = request.persistent_name();
  session->tensors[tensor->id] = tensor;
  registry.Touch(*session);
  if (!tensor->name.empty()) session->named_tensors[name] = tensor->id;
  reply.set_tensor_id(tensor->id);
  return reply;
}

Result<std::shared_ptr<TensorBarrier>> TensorService::Enter(GroupRecord& group, size_t rank,
                                                            const std::shared_ptr<TensorRecord>& tensor,
                                                            const Waiter& waiter, std::string* key) {
  // A retry while the first call waits, or after it was cancelled, meets at the same place. So does another
  // tensor after a call that was cancelled: the other ranks count that one call.
  std::string left;
  for (const auto& [name, pending] : group.tensor_barriers) {
    pending->DropCancelled();
    if (pending->over()) continue;
    if (pending->tensors[rank] == tensor) *key = name;
    const bool withdrew = pending->Withdrew(rank) && !pending->Taken(rank);
    const bool is_first =
        left.empty() || name.size() < left.size() || (name.size() == left.size() && name < left);
    if (withdrew && tensor->name.empty() && name.starts_with('#') && is_first) left = name;
  }
  if (key->empty() && !left.empty()) {
    *key = left;
    group.tensor_barriers[left]->tensors[rank] = tensor;
    core_.registry.Touch(group);
  }
  if (key->empty()) {
    core_.registry.Touch(group);
    *key = tensor->name.empty() ? "#" + std::to_string(group.members[rank].unnamed_barriers++)
                                : "=" + tensor->name;
    auto it = group.tensor_barriers.find(*key);
    if (it != group.tensor_barriers.end() && it->second->over() && it->second->Acknowledged(rank)) {
      group.tensor_barriers.erase(it);
      it = group.tensor_barriers.end();
    }
    if (it == group.tensor_barriers.end()) {
      TANDEM_RETURN_IF_ERROR(CheckOpenBarriers(core_.options.limits, group, group.tensor_barriers.size()));
      auto fresh = std::make_shared<TensorBarrier>(group.world(), NameOf(group), "come");
      fresh->tensors.resize(group.world());
      it = group.tensor_barriers.emplace(*key, std::move(fresh)).first;
    } else if (it->second->Taken(rank) && !it->second->over()) {
      return AlreadyExists("a rendezvous of '" + tensor->name + "' is under way on this rank");
    }
    it->second->tensors[rank] = tensor;
  }
  const std::shared_ptr<TensorBarrier> barrier = group.tensor_barriers[*key];
  if (!barrier->over()) barrier->Take(rank, waiter.deadline);
  return barrier;
}

Result<uint64_t> TensorService::AwaitRegistration(RegistryLock& lock,
                                                  const std::shared_ptr<GroupRecord>& group, size_t rank,
                                                  const std::shared_ptr<TensorRecord>& tensor,
                                                  const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(installer_.AwaitInstalled(lock, *group, waiter));
  std::string key;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<TensorBarrier> barrier,
                          Enter(*group, rank, tensor, waiter, &key));
  if (barrier->phase() == Barrier::Phase::kGathering && barrier->Complete()) {
    barrier->BeginWork();
    Status status = lock.Outside([&] {
      const Waiter for_all = GroupInstaller::ForAllRanks(group, waiter.deadline);
      const auto work = GroupInstaller::TakeWork(*group, for_all);
      return work.ok() ? MakeForAll(*group, *barrier, for_all) : work.status();
    });
    if (!status.ok() && !group->lifecycle.why().ok()) status = group->lifecycle.why();
    barrier->End(status);
  }
  const Status own = barrier->Await(lock, rank, waiter);
  if (barrier->tensors[rank] != tensor)
    return Status(Code::kCancelled, "the rank has come with another tensor, after this call was cancelled");
  // A call that ends by itself counts as answered: the rank's next call is another barrier, unless this
  // one continues then.
  barrier->Acknowledge(rank);
  core_.registry.Touch(*group);
  const auto mine = group->tensor_barriers.find(key);
  const bool done = barrier->over() ? barrier->AllAcknowledged() : !tensor->name.empty() && barrier->Empty();
  if (done && mine != group->tensor_barriers.end() && mine->second == barrier)
    group->tensor_barriers.erase(mine);
  TANDEM_RETURN_IF_ERROR(own);
  TANDEM_RETURN_IF_ERROR(barrier->verdict());
  return barrier->registration_id;
}

Result<v1::RendezvousReply> TensorService::MakeSymmetric(const SessionRef& session,
                                                         const v1::RendezvousRequest& request,
                                                         const Waiter& waiter) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          registry.FindGroup(*session, request.group_id(), &rank));
  const auto found = session->tensors.find(request.tensor_id());
  if (found == session->tensors.end()) {
    return NotFound("no tensor " + std::to_string(request.tensor_id()) + " in this session");
  }
  const std::shared_ptr<TensorRecord> tensor = found->second;
  const int gpu = group->gpus[static_cast<size_t>(rank)];
  if (tensor->gpu != gpu) {
    return InvalidArgument("the tensor lies on GPU " + std::to_string(tensor->gpu) + ", rank " +
                           std::to_string(rank) + " of group '" + group->name + "' is on GPU " +
                           std::to_string(gpu))
        .WithDetail({.reason = "WRONG_GPU", .who = {}, .field = "tensor_id"});
  }
  uint64_t registration_id = 0;
  if (const auto met = tensor->registrations.find(group->id); met != tensor->registrations.end()) {
    registration_id = met->second;  // a repeated call gets the same answer
  } else {
    TANDEM_ASSIGN_OR_RETURN(registration_id,
                            AwaitRegistration(lock, group, static_cast<size_t>(rank), tensor, waiter));
  }
  const auto shared = group->tensors.find(registration_id);
  if (shared == group->tensors.end()) return Unavailable("the tensor was freed meanwhile");
  v1::RendezvousReply reply;
  reply.set_rank(rank);
  reply.set_world_size(static_cast<int>(group->world()));
  reply.set_buffer_bytes(tensor->bytes);
  reply.set_signal_pad_bytes(kSignalPadBytes);
  reply.set_segment_bytes(tensor->block->set->bytes);
  reply.set_buffer_offset(tensor->block->offset);
  reply.set_pad_offset(tensor->block->pad_offset);
  reply.set_registration_id(registration_id);
  reply.set_transfer_id(registry.next_id++);
  std::vector<SharedFd> fds;
  for (const auto& peer : shared->second.tensors) {
    const size_t block_rank = static_cast<size_t>(peer->block_rank);
    fds.push_back(peer->block->set->fds[block_rank]);
    reply.add_segment_ids(peer->block->set->segment_ids[block_rank]);
  }
  lock.Unlock();
  TANDEM_RETURN_IF_ERROR(core_.SendDescriptors(session->id, reply.transfer_id(), fds));
  return reply;
}

Result<std::shared_ptr<SymmetricBlock>> TensorService::MakeBlock(GroupRecord& group, uint64_t bytes,
                                                                 const Waiter& waiter) {
  const uint64_t needed = Aligned(bytes) + kSignalPadBytes;
  const auto take = [&](const std::shared_ptr<SegmentSet>& set)
                        TANDEM_REQUIRES(registry_mutex) -> std::shared_ptr<SymmetricBlock> {
    Result<uint64_t> offset = set->allocator.Allocate(needed);
    if (!offset.ok()) return nullptr;
    core_.registry.Touch(*set);
    auto block = std::make_shared<SymmetricBlock>();
    block->set = set;
    block->offset = *offset;
    block->pad_offset = *offset + Aligned(bytes);
    return block;
  };
  uint64_t total = 0;
  {
    RegistryLock lock(core_.registry);
    for (const auto& set : group.symmetric) {
      total += set->bytes;
      if (auto block = take(set)) return block;
    }
  }
  const uint64_t step = std::clamp(total, kSmallestStep, kLargestStep);
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<SegmentSet> set,
                          segments_.MakeSet(group, std::max(needed, step), "symmetric", waiter));
  RegistryLock lock(core_.registry);
  if (!core_.registry.Has(group)) {
    segments_.RemoveSet(set);
    return Unavailable("group '" + group.name + "' has ended");
  }
  group.symmetric.push_back(set);
  core_.registry.Touch(group);
  auto block = take(set);
  if (!block) return Internal("a new segment has no room for the block that it was made for");
  return block;
}

Status TensorService::CheckTensors(const GroupRecord& group, const TensorBarrier& barrier,
                                   const SymmetricBlock* fresh) const {
  TANDEM_RETURN_IF_ERROR(installer_.Installed(group));
  for (size_t rank = 0; rank < group.world(); ++rank) {
    if (barrier.tensors[rank]->freed) return FreedMeanwhile(group, rank);
  }
  if (fresh != nullptr) return Status::Ok();
  const SymmetricBlock& first = *barrier.tensors[0]->block;
  for (size_t rank = 1; rank < group.world(); ++rank) {
    const SymmetricBlock& other = *barrier.tensors[rank]->block;
    if (other.offset == first.offset && other.set->bytes == first.set->bytes) continue;
    return FailedPrecondition(NameOf(group) +
                              ": the ranks' tensors lie at different offsets of their segments; rank 0 at " +
                              std::to_string(first.offset) + ", rank " + std::to_string(rank) + " at " +
                              std::to_string(other.offset))
        .WithDetail(BlameRanks("FIELD_MISMATCH", {0, static_cast<uint32_t>(rank)}, "tensor_id"));
  }
  return Status::Ok();
}

Status TensorService::MakeForAll(GroupRecord& group, TensorBarrier& barrier, const Waiter& waiter) {
  Registry& registry = core_.registry;
  const size_t world = group.world();
  const uint64_t bytes = barrier.tensors[0]->bytes;
  for (size_t rank = 0; rank < world; ++rank) {
    if (barrier.tensors[rank]->bytes == bytes) continue;
    return InvalidArgument(NameOf(group) + ": rank 0 has " + std::to_string(bytes) + " bytes, rank " +
                           std::to_string(rank) + " has " + std::to_string(barrier.tensors[rank]->bytes))
        .WithDetail(BlameRanks("FIELD_MISMATCH", {0, static_cast<uint32_t>(rank)}, "bytes"));
  }
  std::vector<uint32_t> without_memory;
  {
    RegistryLock lock(registry);
    for (size_t rank = 0; rank < world; ++rank) {
      if (!barrier.tensors[rank]->block) without_memory.push_back(static_cast<uint32_t>(rank));
    }
  }
  std::shared_ptr<SymmetricBlock> fresh;
  if (without_memory.size() == world) {
    TANDEM_ASSIGN_OR_RETURN(fresh, MakeBlock(group, bytes, waiter));
  } else if (!without_memory.empty()) {
    return FailedPrecondition(NameOf(group) + ": the tensors of " + RankList(without_memory) +
                              " have no memory, the others' have memory from an earlier rendezvous")
        .WithDetail(BlameRanks("FIELD_MISMATCH", without_memory, "tensor_id"));
  }
  auto batch = std::make_shared<CommandBatch>();
  uint64_t id = 0;
  {
    RegistryLock lock(registry);
    Status status = CheckTensors(group, barrier, fresh.get());
    // `work` is of one group: the tensors may have got memory by a barrier of another one since we looked.
    const bool overtaken = fresh && std::any_of(barrier.tensors.begin(), barrier.tensors.end(),
                                                [](const auto& tensor) TANDEM_REQUIRES(registry_mutex) {
                                                  return tensor->block != nullptr;
                                                });
    if (!status.ok() || overtaken) {
      if (fresh) {
        fresh->set->allocator.Free(fresh->offset).ok();
        registry.Touch(*fresh->set);
        segments_.DropSetIfUnused(fresh->set);
      }
      if (!status.ok()) return status;
      lock.Unlock();
      return MakeForAll(group, barrier, waiter);  // once: memory stays with a tensor until it is freed
    }
    id = registry.next_id++;
    GroupTensor& shared = group.tensors[id];
    shared.bytes = bytes;
    shared.tensors = barrier.tensors;
    shared.freed.resize(world);
    for (size_t rank = 0; rank < world; ++rank) {
      TensorRecord& tensor = *barrier.tensors[rank];
      if (fresh) {
        tensor.block = fresh;
        tensor.block_rank = static_cast<int>(rank);
        ++fresh->tensors;
      } else {
        segments_.MapSet(*tensor.block->set, static_cast<size_t>(tensor.block_rank), group, batch);
      }
      tensor.registrations[group.id] = id;
      TouchOwner(tensor);
    }
    barrier.registration_id = id;
    installer_.PostRegistration(group, id, batch);
  }
  Status status = batch->Wait(waiter);
  RegistryLock lock(registry);
  registry.Touch(group);
  for (const auto& tensor : barrier.tensors) TouchOwner(*tensor);
  if (status.ok()) {
    // It may have been freed meanwhile.
    if (const auto made = group.tensors.find(id); made != group.tensors.end())
      made->second.acknowledged = true;
  } else {
    for (const auto& tensor : barrier.tensors) tensor->registrations.erase(group.id);
    group.tensors.erase(id);
    // Some engines may have it, and would keep its memory.
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(id);
    registry.PostToAll(group, command);
  }
  return status;
}

void TensorService::TouchOwner(const TensorRecord& tensor) {
  const auto owner = core_.registry.sessions.find(tensor.session_id);
  if (owner != core_.registry.sessions.end()) core_.registry.Touch(*owner->second);
}

void TensorService::EndBarrierOf(const SessionRecord& session, const std::shared_ptr<TensorRecord>& tensor) {
  for (const uint64_t id : session.groups) {
    const auto group = core_.registry.groups.find(id);
    if (group == core_.registry.groups.end()) continue;
    for (const auto& [key, barrier] : group->second->tensor_barriers) {
      const auto own = std::find(barrier->tensors.begin(), barrier->tensors.end(), tensor);
      if (own == barrier->tensors.end()) continue;
      const auto rank = static_cast<size_t>(own - barrier->tensors.begin());
      barrier->DropCancelled();
      if (barrier->Withdrew(rank) && !barrier->Taken(rank)) continue;  // it may come with another one
      core_.registry.Touch(*group->second);
      barrier->EndGathering(FreedMeanwhile(*group->second, rank));
    }
  }
}

void TensorService::FreeTensor(SessionRecord& session, uint64_t tensor_id) {
  Registry& registry = core_.registry;
  const std::shared_ptr<TensorRecord> tensor = session.tensors[tensor_id];
  session.tensors.erase(tensor_id);
  registry.Touch(session);
  tensor->freed = true;
  EndBarrierOf(session, tensor);
  if (!tensor->name.empty()) session.named_tensors.erase(std::to_string(tensor->gpu) + "/" + tensor->name);
  registry.ledger.Refund(session.payer(), Resource::kTensors, 1);
  for (const auto& [group_id, registration_id] : tensor->registrations) {
    const auto it = registry.groups.find(group_id);
    if (it == registry.groups.end()) continue;
    GroupRecord& group = *it->second;
    registry.Touch(group);
    const auto shared = group.tensors.find(registration_id);
    if (shared == group.tensors.end()) continue;
    bool all = true;
    for (size_t rank = 0; rank < group.world(); ++rank) {
      if (shared->second.tensors[rank] == tensor) shared->second.freed[rank] = true;
      all &= static_cast<bool>(shared->second.freed[rank]);
    }
    if (!all) continue;
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(registration_id);
    registry.PostToAll(group, command);
    group.tensors.erase(shared);
  }
  if (tensor->block && --tensor->block->tensors == 0) {
    const std::shared_ptr<SegmentSet> set = tensor->block->set;
    segments_.ClearBlock(*set, tensor->block->offset, set->allocator.BlockBytes(tensor->block->offset));
    set->allocator.Free(tensor->block->offset).ok();
    registry.Touch(*set);
    segments_.DropSetIfUnused(set);
  }
}

void TensorService::FreeAllOf(SessionRecord& session) {
  while (!session.tensors.empty()) FreeTensor(session, session.tensors.begin()->first);
}

Status TensorService::Free(const SessionRef& session, uint64_t tensor_id) {
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
  const auto it = session->tensors.find(tensor_id);
  if (it == session->tensors.end()) {
    return NotFound("no tensor " + std::to_string(tensor_id) + " in this session");
  }
  const TensorRecord& tensor = *it->second;
  if (!tensor.name.empty() && !tensor.registrations.empty()) return Status::Ok();
  FreeTensor(*session, tensor_id);
  return Status::Ok();
}

}  // namespace tandem::daemon
