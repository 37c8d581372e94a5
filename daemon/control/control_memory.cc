// Symmetric tensors: Empty, Rendezvous, Free.
#include <fcntl.h>

#include <algorithm>

#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"

namespace tandem::daemon {
namespace {

// A group's symmetric segments double up to this size; a tensor that is larger gets a segment of its own.
constexpr uint64_t kLargestStep = uint64_t{64} << 20;
constexpr uint64_t kSmallestStep = uint64_t{2} << 20;

uint64_t Aligned(uint64_t bytes) {
  return (bytes + OffsetAllocator::kAlignment - 1) / OffsetAllocator::kAlignment *
         OffsetAllocator::kAlignment;
}

Status FreedWhileMeeting(const Group& group, size_t rank) {
  const std::string who = "rank " + std::to_string(rank);
  return Status(Code::kFailedPrecondition,
                "rendezvous in group '" + group.name + "': " + who + " freed its tensor meanwhile",
                {.reason = "TENSOR_FREED", .who = who, .field = "tensor_id"});
}

}  // namespace

// Failed meetings stay until all ranks have heard of them, which one that never asks does not.
Status Control::MayMeet(const Group& group, size_t open) const {
  const uint64_t limit = options_.limits.meetings_per_group;
  if (open < limit) return Status::Ok();
  return Status(
      Code::kResourceExhausted,
      "group '" + group.name + "' has " + std::to_string(open) + " meetings that not all ranks have come to",
      {.reason = "QUOTA_MEETINGS",
       .who = {},
       .field = {},
       .limit = static_cast<long long>(limit),
       .usage = static_cast<long long>(open)});
}

Result<v1::EmptyReply> Control::Empty(const SessionRef& session, const v1::EmptyRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(uint64_t bytes, ParseEmpty(request));
  TANDEM_ASSIGN_OR_RETURN(int gpu, FindGpu(request.gpu_uuid()));
  v1::EmptyReply reply;
  reply.set_bytes(bytes);
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  const std::string name = std::to_string(gpu) + "/" + request.persistent_name();
  if (!request.persistent_name().empty()) {
    if (auto it = session->named_tensors.find(name); it != session->named_tensors.end()) {
      const Tensor& tensor = *session->tensors[it->second];
      if (tensor.bytes != bytes) {
        return InvalidArgument("persistent tensor '" + request.persistent_name() + "' has " +
                               std::to_string(tensor.bytes) + " bytes, not " + std::to_string(bytes))
            .WithDetail({.reason = "NAME_MISMATCH", .who = {}, .field = "spec"});
      }
      reply.set_tensor_id(tensor.id);
      return reply;
    }
  }
  TANDEM_RETURN_IF_ERROR(registry_->ledger.Check(session->payer(), Resource::kSegmentBytes, bytes));
  TANDEM_RETURN_IF_ERROR(registry_->ledger.Charge(session->payer(), Resource::kTensors, 1));
  auto tensor = std::make_shared<Tensor>();
  tensor->id = registry_->next_id++;
  tensor->session_id = session->id;
  tensor->gpu = gpu;
  tensor->bytes = bytes;
  tensor->name = request.persistent_name();
  session->tensors[tensor->id] = tensor;
  if (!tensor->name.empty()) session->named_tensors[name] = tensor->id;
  reply.set_tensor_id(tensor->id);
  return reply;
}

Result<v1::RendezvousReply> Control::Rendezvous(const SessionRef& session,
                                                const v1::RendezvousRequest& request, const Waiter& waiter) {
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, FindGroupLocked(*session, request.group_id(), &rank));
  auto found = session->tensors.find(request.tensor_id());
  if (found == session->tensors.end()) {
    return NotFound("no tensor " + std::to_string(request.tensor_id()) + " in this session");
  }
  const std::shared_ptr<Tensor> tensor = found->second;
  Member& member = group->members[static_cast<size_t>(rank)];
  if (tensor->gpu != member.gpu) {
    return InvalidArgument("the tensor lies on GPU " + std::to_string(tensor->gpu) + ", rank " +
                           std::to_string(rank) + " of group '" + group->name + "' is on GPU " +
                           std::to_string(member.gpu))
        .WithDetail({.reason = "WRONG_GPU", .who = {}, .field = "tensor_id"});
  }
  const size_t r = static_cast<size_t>(rank);
  uint64_t registration_id = 0;
  if (auto met = tensor->registrations.find(group->id); met != tensor->registrations.end()) {
    registration_id = met->second;  // a repeated call gets the same answer
  } else {
    TANDEM_RETURN_IF_ERROR(AwaitInstalledLocked(lock, *group, waiter));
    std::string key;
    // A retry while the first call waits, or after it was cancelled, meets at the same place.
    for (const auto& [name, pending] : group->rendezvous) {
      if (pending->phase != Meeting::Phase::kDone && pending->tensors[r] == tensor) key = name;
    }
    if (key.empty()) {
      key = tensor->name.empty() ? "#" + std::to_string(member.rendezvous++) : "=" + tensor->name;
      auto it = group->rendezvous.find(key);
      if (it != group->rendezvous.end() && it->second->phase == Meeting::Phase::kDone &&
          it->second->told[r]) {
        group->rendezvous.erase(it);
        it = group->rendezvous.end();
      }
      if (it == group->rendezvous.end()) {
        TANDEM_RETURN_IF_ERROR(MayMeet(*group, group->rendezvous.size()));
        auto fresh = std::make_shared<RendezvousMeeting>();
        fresh->Resize(group->members.size());
        fresh->tensors.resize(group->members.size());
        it = group->rendezvous.emplace(key, std::move(fresh)).first;
      } else if (it->second->seated[r] && it->second->phase != Meeting::Phase::kDone) {
        return Status(Code::kAlreadyExists,
                      "a rendezvous of '" + tensor->name + "' is under way on this rank");
      }
      it->second->tensors[r] = tensor;
    }
    const std::shared_ptr<RendezvousMeeting> meeting = group->rendezvous[key];
    if (meeting->phase != Meeting::Phase::kDone) meeting->Seat(r);
    const bool complete =
        std::all_of(meeting->seated.begin(), meeting->seated.end(), [](bool s) { return s; });
    if (meeting->phase == Meeting::Phase::kWaiting && complete) {
      meeting->phase = Meeting::Phase::kWorking;
      lock.unlock();
      Status status;
      {
        const Waiter for_all = ForAllRanks(group, waiter.deadline);
        const auto work = TakeWork(*group, for_all);
        status = work.ok() ? MeetTensors(*group, *meeting, for_all) : work.status();
      }
      lock.lock();
      if (!status.ok() && !group->broken.ok()) status = group->broken;
      meeting->phase = Meeting::Phase::kDone;
      meeting->status = status;
      meeting->changed.notify_all();
    }
    const Status own = meeting->Await(lock, r, "rendezvous in group '" + group->name + "'", "come", waiter);
    // A call that ends by itself counts as told: what the rank asks next is another rendezvous, unless the
    // meeting goes on then.
    meeting->told[r] = true;
    const auto mine = group->rendezvous.find(key);
    const bool over = meeting->phase == Meeting::Phase::kDone ? meeting->AllTold()
                                                              : !tensor->name.empty() && meeting->Empty();
    if (over && mine != group->rendezvous.end() && mine->second == meeting) group->rendezvous.erase(mine);
    TANDEM_RETURN_IF_ERROR(own);
    TANDEM_RETURN_IF_ERROR(meeting->status);
    registration_id = meeting->registration_id;
  }
  auto shared = group->tensors.find(registration_id);
  if (shared == group->tensors.end()) return Unavailable("the tensor was freed meanwhile");
  v1::RendezvousReply reply;
  reply.set_rank(rank);
  reply.set_world_size(static_cast<int>(group->members.size()));
  reply.set_buffer_bytes(tensor->bytes);
  reply.set_signal_pad_bytes(kSignalPadBytes);
  reply.set_segment_bytes(tensor->block->set->bytes);
  reply.set_buffer_offset(tensor->block->offset);
  reply.set_pad_offset(tensor->block->pad_offset);
  reply.set_registration_id(registration_id);
  reply.set_transfer_id(registry_->next_id++);
  std::vector<SharedFd> fds;
  for (const auto& peer : shared->second.tensors) {
    fds.push_back(peer->block->set->fds[static_cast<size_t>(peer->block_rank)]);
    reply.add_segment_ids(peer->block->set->segment_ids[static_cast<size_t>(peer->block_rank)]);
  }
  lock.unlock();
  TANDEM_RETURN_IF_ERROR(SendDescriptors(session, reply.transfer_id(), fds));
  return reply;
}

Status Control::SendDescriptors(const SessionRef& session, uint64_t transfer_id,
                                const std::vector<SharedFd>& fds) {
  if (lease_port_ == nullptr) return Internal("no lease socket");
  return lease_port_->Send(session->id, transfer_id, fds);
}

Result<std::shared_ptr<SymmetricBlock>> Control::MakeBlock(Group& group, uint64_t bytes,
                                                           const Waiter& waiter) {
  const uint64_t needed = Aligned(bytes) + kSignalPadBytes;
  const auto take = [&](const std::shared_ptr<SegmentSet>& set) -> std::shared_ptr<SymmetricBlock> {
    Result<uint64_t> offset = set->allocator.Allocate(needed);
    if (!offset.ok()) return nullptr;
    auto block = std::make_shared<SymmetricBlock>();
    block->set = set;
    block->offset = *offset;
    block->pad_offset = *offset + Aligned(bytes);
    return block;
  };
  uint64_t total = 0;
  {
    Lock lock(registry_->mutex);
    for (const auto& set : group.symmetric) {
      total += set->bytes;
      if (auto block = take(set)) return block;
    }
  }
  const uint64_t step = std::clamp(total, kSmallestStep, kLargestStep);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<SegmentSet> set,
                          MakeSet(group, std::max(needed, step), "symmetric", waiter));
  Lock lock(registry_->mutex);
  if (!registry_->Has(group)) {
    RemoveSetLocked(set);
    return Unavailable("group '" + group.name + "' has ended");
  }
  group.symmetric.push_back(set);
  auto block = take(set);
  if (!block) return Internal("a new segment has no room for what it was made for");
  return block;
}

// The leader's part of a rendezvous: memory for tensors that have none, and a registration on every engine.
Status Control::MeetTensors(Group& group, RendezvousMeeting& meeting, const Waiter& waiter) {
  const size_t world = group.members.size();
  size_t with_memory = 0;
  const uint64_t bytes = meeting.tensors[0]->bytes;
  for (size_t rank = 0; rank < world; ++rank) {
    const Tensor& tensor = *meeting.tensors[rank];
    if (tensor.bytes != bytes) {
      return InvalidArgument("rendezvous in group '" + group.name + "': rank 0 has " + std::to_string(bytes) +
                             " bytes, rank " + std::to_string(rank) + " has " + std::to_string(tensor.bytes))
          .WithDetail({.reason = "FIELD_MISMATCH", .who = "rank " + std::to_string(rank), .field = "bytes"});
    }
  }
  std::shared_ptr<SymmetricBlock> fresh;
  {
    Lock lock(registry_->mutex);
    for (const auto& tensor : meeting.tensors) with_memory += tensor->block ? 1 : 0;
  }
  if (with_memory == 0) {
    TANDEM_ASSIGN_OR_RETURN(fresh, MakeBlock(group, bytes, waiter));
  } else if (with_memory < world) {
    return FailedPrecondition(
        "rendezvous in group '" + group.name +
        "': some ranks' tensors have memory from an earlier rendezvous, others have none");
  }
  auto batch = std::make_shared<CommandBatch>();
  uint64_t id = 0;
  {
    Lock lock(registry_->mutex);
    Status status = InstalledLocked(group);
    for (size_t rank = 0; status.ok() && rank < world; ++rank) {
      if (meeting.tensors[rank]->freed) status = FreedWhileMeeting(group, rank);
    }
    const SymmetricBlock& first = fresh ? *fresh : *meeting.tensors[0]->block;
    for (size_t rank = 0; status.ok() && rank < world && !fresh; ++rank) {
      const SymmetricBlock& other = *meeting.tensors[rank]->block;
      if (other.offset != first.offset || other.set->bytes != first.set->bytes) {
        status = FailedPrecondition(
            "rendezvous in group '" + group.name +
            "': the ranks' tensors lie at different offsets of their segments; rank 0 at " +
            std::to_string(first.offset) + ", rank " + std::to_string(rank) + " at " +
            std::to_string(other.offset));
      }
    }
    // `work` is of one group: the tensors may have got memory by a meeting of another one since we looked.
    const bool overtaken = fresh && std::any_of(meeting.tensors.begin(), meeting.tensors.end(),
                                                [](const auto& tensor) { return tensor->block != nullptr; });
    if (!status.ok() || overtaken) {
      if (fresh) {
        fresh->set->allocator.Free(fresh->offset).ok();
        DropSetIfUnusedLocked(fresh->set);
      }
      if (!status.ok()) return status;
      lock.unlock();
      return MeetTensors(group, meeting, waiter);  // once: memory stays with a tensor until it is freed
    }
    id = registry_->next_id++;
    GroupTensor& shared = group.tensors[id];
    shared.bytes = bytes;
    shared.tensors = meeting.tensors;
    shared.freed.resize(world);
    for (size_t rank = 0; rank < world; ++rank) {
      Tensor& tensor = *meeting.tensors[rank];
      if (fresh) {
        tensor.block = fresh;
        tensor.block_rank = static_cast<int>(rank);
        ++fresh->tensors;
      } else {
        MapSetLocked(*tensor.block->set, static_cast<size_t>(tensor.block_rank), group, batch);
      }
      tensor.registrations[group.id] = id;
    }
    meeting.registration_id = id;
    PostRegistrationLocked(group, id, batch);
  }
  Status status = batch->Wait(waiter);
  if (!status.ok()) {
    Lock lock(registry_->mutex);
    for (const auto& tensor : meeting.tensors) tensor->registrations.erase(group.id);
    group.tensors.erase(id);
    // Some engines may have it, and would keep its memory.
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(id);
    for (const Member& member : group.members)
      registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command);
  }
  return status;
}

// Zeroes a freed block on every rank: the next owner must not see what was there. A memfd gives its pages
// back; device memory is cleared by its engine, to which commands go in order: before anybody learns of the
// block's next use.
void Control::ClearBlockLocked(const SegmentSet& set, uint64_t offset, uint64_t bytes) {
  for (size_t rank = 0; rank < set.fds.size(); ++rank) {
    if (!set.fds[rank]) continue;
    if (options_.backend == "host") {
      ::fallocate(set.fds[rank]->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(offset), static_cast<off_t>(bytes));
      continue;
    }
    engine::v1::Command command;
    command.mutable_clear_memory()->set_segment_id(set.segment_ids[rank]);
    command.mutable_clear_memory()->set_offset(offset);
    command.mutable_clear_memory()->set_bytes(bytes);
    registry_->mailboxes[static_cast<size_t>(set.gpus[rank])]->Post(std::move(command));
  }
}

// Whoever waits for the others with it would give memory to what nobody can free any more.
void Control::FailMeetingsOfTensorLocked(const Session& session, const std::shared_ptr<Tensor>& tensor) {
  for (uint64_t id : session.groups) {
    const auto group = registry_->groups.find(id);
    if (group == registry_->groups.end()) continue;
    for (const auto& [key, meeting] : group->second->rendezvous) {
      const auto own = std::find(meeting->tensors.begin(), meeting->tensors.end(), tensor);
      if (own == meeting->tensors.end() || meeting->phase != Meeting::Phase::kWaiting) continue;
      meeting->phase = Meeting::Phase::kDone;
      meeting->status =
          FreedWhileMeeting(*group->second, static_cast<size_t>(own - meeting->tensors.begin()));
      meeting->changed.notify_all();
    }
  }
}

void Control::FreeTensorLocked(Session& session, uint64_t tensor_id) {
  const std::shared_ptr<Tensor> tensor = session.tensors[tensor_id];
  session.tensors.erase(tensor_id);
  tensor->freed = true;
  FailMeetingsOfTensorLocked(session, tensor);
  if (!tensor->name.empty()) session.named_tensors.erase(std::to_string(tensor->gpu) + "/" + tensor->name);
  registry_->ledger.Refund(session.payer(), Resource::kTensors, 1);
  for (const auto& [group_id, registration_id] : tensor->registrations) {
    auto it = registry_->groups.find(group_id);
    if (it == registry_->groups.end()) continue;
    Group& group = *it->second;
    auto shared = group.tensors.find(registration_id);
    if (shared == group.tensors.end()) continue;
    bool all = true;
    for (size_t rank = 0; rank < group.members.size(); ++rank) {
      if (shared->second.tensors[rank] == tensor) shared->second.freed[rank] = true;
      all &= static_cast<bool>(shared->second.freed[rank]);
    }
    if (!all) continue;
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(registration_id);
    for (const Member& member : group.members) {
      registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command);
    }
    group.tensors.erase(shared);
  }
  if (tensor->block && --tensor->block->tensors == 0) {
    const std::shared_ptr<SegmentSet> set = tensor->block->set;
    const uint64_t bytes = set->allocator.BlockBytes(tensor->block->offset);
    ClearBlockLocked(*set, tensor->block->offset, bytes);
    set->allocator.Free(tensor->block->offset).ok();
    DropSetIfUnusedLocked(set);
  }
}

Status Control::Free(const SessionRef& session, uint64_t tensor_id) {
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  auto it = session->tensors.find(tensor_id);
  if (it == session->tensors.end()) {
    return NotFound("no tensor " + std::to_string(tensor_id) + " in this session");
  }
  const Tensor& tensor = *it->second;
  // A name keeps the memory for the next call with it, as long as a group of its lives.
  if (!tensor.name.empty() && !tensor.registrations.empty()) return Status::Ok();
  FreeTensorLocked(*session, tensor_id);
  return Status::Ok();
}

}  // namespace tandem::daemon
