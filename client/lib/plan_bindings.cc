// Plan: the memory that a launch's slots are bound to.
#include <algorithm>
#include <typeinfo>

#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/digest.h"

namespace tandem::client {
namespace {

Status BindingError(const Status& status, const char* reason) {
  return status.WithDetail({.reason = reason});
}

Status CheckRoom(const Memory& memory, uint64_t offset, uint64_t needed) {
  if (offset <= memory.bytes() && needed <= memory.bytes() - offset) return Status::Ok();
  return BindingError(
      OutOfRange("needs " + std::to_string(needed) + " bytes from offset " + std::to_string(offset) +
                 ", the memory has " + std::to_string(memory.bytes())),
      "BINDING_TOO_SMALL");
}

Status Overlaps(int first_slot) {
  const std::string first = std::to_string(first_slot);
  return BindingError(InvalidArgument("overlaps slot " + first +
                                      " in memory, and the launch writes one of both: bind them apart, or " +
                                      "prepare the plan with this slot's alias_of = " + first),
                      "SLOTS_OVERLAP");
}

// `group`: the symmetric tensor's, `own`: the plan's.
Status OfOtherGroup(const std::string& group, const std::string& own) {
  return BindingError(
      FailedPrecondition("the memory is a symmetric tensor of group '" + group + "', the plan is of group '" +
                         own +
                         "': make it by Empty and Rendezvous it with both groups, or use registered memory"),
      "OTHER_GROUP");
}

std::string FieldOf(size_t slot) { return "bindings[" + std::to_string(slot) + "]"; }

}  // namespace

Status PlanHandle::OfSlot(size_t i, const Status& error) const {
  StatusDetail detail = error.detail();
  detail.field = FieldOf(i);
  detail.started = false;  // it is refused on all ranks
  return error.WithContext("slot " + std::to_string(i) + " of plan '" + info_.key + "'")
      .WithDetail(std::move(detail));
}

Status PlanHandle::CheckDevice(const Memory& memory) const {
  TANDEM_RETURN_IF_ERROR(memory.Check());
  if (memory.gpu_uuid().empty() || memory.gpu_uuid() == group_->gpu_uuid()) return Status::Ok();
  return BindingError(InvalidArgument("the memory is on " + memory.gpu_uuid() + ", the group's rank has " +
                                      group_->gpu_uuid()),
                      "WRONG_DEVICE");
}

Status PlanHandle::CheckOwner(size_t i, const Memory& memory) const {
  const ClientSession* owner = nullptr;
  const bool tensor = typeid(memory) == typeid(TensorHandle);
  const bool registered = typeid(memory) == typeid(RegisteredMemory);
  const bool foreign = typeid(memory) == typeid(ForeignClientMemory);
  if (tensor) owner = static_cast<const TensorHandle&>(memory).group().session().get();
  if (registered) owner = static_cast<const RegisteredMemory&>(memory).session().get();
  if (foreign) owner = static_cast<const ForeignClientMemory&>(memory).session().get();
  if (owner != nullptr && owner != &session()) {
    return BindingError(
        FailedPrecondition(
            "the memory is of another client of this process, which the engine does not open to "
            "this one: allocate or register it by the client that launches"),
        "OTHER_CLIENT");
  }
  if (tensor && static_cast<const TensorHandle&>(memory).group().id() != group_->id())
    return OfOtherGroup(static_cast<const TensorHandle&>(memory).group().name(), group_->name());
  if ((registered || foreign) && i < rules_.size() && rules_[i].symmetric) {
    return BindingError(InvalidArgument("is symmetric, and bound to no symmetric tensor of the group"),
                        "NOT_SYMMETRIC");
  }
  return Status::Ok();
}

Status PlanHandle::CheckAlignment(size_t i, const std::byte* start) const {
  const size_t alignment = i < rules_.size() ? rules_[i].alignment : 1;
  if (reinterpret_cast<uintptr_t>(start) % alignment == 0) return Status::Ok();
  return BindingError(InvalidArgument("begins at an address that is no multiple of the " +
                                      std::to_string(alignment) + " bytes of an element"),
                      "NOT_ALIGNED");
}

Status PlanHandle::CheckCount(size_t bindings) const {
  if (bindings == info_.slot_bytes.size()) return Status::Ok();
  return InvalidArgument("plan '" + info_.key + "' has " + std::to_string(info_.slot_bytes.size()) +
                         " slots, the launch binds " + std::to_string(bindings))
      .WithDetail({.reason = "BINDING_COUNT", .field = "bindings", .started = false});
}

Result<LaunchBinding> PlanHandle::Resolve(ClientDevice& device, size_t i, const Binding& binding,
                                          BoundRegistrations* bound) const {
  uint64_t needed = info_.slot_bytes[i];
  if (binding.memory == nullptr) {
    if (binding.pointer == nullptr) return BindingError(InvalidArgument("is not bound"), "NOT_BOUND");
    const auto* start = static_cast<const std::byte*>(binding.pointer) + binding.offset;
    Result<LaunchBinding> found = session().registrations().Resolve(session().control(), device, group_->id(),
                                                                    group_->gpu_uuid(), start, needed, bound);
    if (found.ok()) {
      TANDEM_RETURN_IF_ERROR(CheckAlignment(i, start));
      return found;
    }
    const std::optional<std::string> other = session().registrations().OtherGroup(start, group_->id());
    return other.has_value() ? OfOtherGroup(*other, group_->name()) : found.status();
  }
  const Memory& memory = *binding.memory;
  TANDEM_RETURN_IF_ERROR(CheckRoom(memory, binding.offset, needed));
  TANDEM_RETURN_IF_ERROR(CheckDevice(memory));
  TANDEM_RETURN_IF_ERROR(CheckOwner(i, memory));
  TANDEM_RETURN_IF_ERROR(CheckAlignment(i, memory.data() + binding.offset));
  // Such a handle only names the memory: the user may drop it at once.
  if (auto* foreign = dynamic_cast<const ForeignClientMemory*>(&memory)) bound->Add(foreign->registration());
  return LaunchBinding{memory.registration_id(), memory.registration_offset() + binding.offset};
}

Result<runtime::SlotAddress> PlanHandle::ResolveAddress(size_t i, const Binding& binding, uint64_t needed,
                                                        ClientTag* tag) const {
  std::byte* start = nullptr;
  if (binding.memory == nullptr) {
    if (binding.pointer == nullptr) return BindingError(InvalidArgument("is not bound"), "NOT_BOUND");
    start = const_cast<std::byte*>(static_cast<const std::byte*>(binding.pointer)) + binding.offset;
  } else {
    TANDEM_RETURN_IF_ERROR(CheckRoom(*binding.memory, binding.offset, needed));
    TANDEM_RETURN_IF_ERROR(CheckDevice(*binding.memory));
    start = binding.memory->data() + binding.offset;
  }
  TANDEM_RETURN_IF_ERROR(CheckAlignment(i, start));
  runtime::SlotAddress address;
  address.own = start;
  if (!client_plan_->symmetric(i)) return address;
  const std::shared_ptr<TensorHandle> tensor = group_->FindTensor(start, needed);
  if (tensor == nullptr) {
    return BindingError(InvalidArgument("is symmetric, and bound to no symmetric tensor of the group"),
                        "NOT_SYMMETRIC");
  }
  for (int peer = 0; peer < group_->world_size(); ++peer) {
    address.peer[static_cast<size_t>(peer)] = tensor->PeerOf(start, peer);
  }
  tag->Add(tensor->registration_id());
  tag->Add(static_cast<uint64_t>(start - tensor->data()));
  return address;
}

Result<ClientBindings> PlanHandle::BindAddresses(std::span<const Binding> bindings,
                                                 const LaunchOptions& options,
                                                 const PlanMember& member) const {
  TANDEM_RETURN_IF_ERROR(CheckCount(bindings.size()));
  ClientBindings bound;
  ClientTag tag;
  tag.Add(info_.plan_id);
  tag.Add(TagDigest(options.tag));
  tag.Add(static_cast<uint64_t>(member.rows));
  SlotAddresses addresses{};
  for (size_t i = 0; i < bindings.size(); ++i) {
    bound.slots.emplace_back();
    if (member.slot_bytes[i] == 0) continue;
    Result<runtime::SlotAddress> address = ResolveAddress(i, bindings[i], member.slot_bytes[i], &tag);
    if (!address.ok()) return OfSlot(i, address.status());
    bound.slots.back() = *address;
    addresses[i] = reinterpret_cast<uintptr_t>(address->own);
  }
  if (const auto shared = member.overlap.Find(addresses); shared.has_value()) {
    return OfSlot(static_cast<size_t>(shared->second), Overlaps(shared->first));
  }
  bound.tag = tag.Fold();
  return bound;
}

Status PlanHandle::FillEntry(ClientDevice& device, std::span<const Binding> bindings,
                             const LaunchOptions& options, LaunchEntry* entry,
                             BoundRegistrations* bound) const {
  entry->plan_id = info_.plan_id;
  entry->deadline_ns = static_cast<uint64_t>(Bounded(options.deadline).count()) * 1'000'000;
  entry->tag_digest = TagDigest(options.tag);
  entry->binding_count = static_cast<uint32_t>(std::min(bindings.size(), static_cast<size_t>(kMaxBindings)));
  Status status = CheckCount(bindings.size());
  SlotAddresses addresses{};
  for (size_t i = 0; i < entry->binding_count; ++i) {
    entry->bindings[i] = {};
    if (i >= info_.slot_bytes.size() || info_.slot_bytes[i] == 0) continue;
    const Memory* memory = bindings[i].memory;
    Result<LaunchBinding> binding = Resolve(device, i, bindings[i], bound);
    if (binding.ok()) {
      entry->bindings[i] = *binding;
      const auto* start =
          memory != nullptr ? memory->data() : static_cast<const std::byte*>(bindings[i].pointer);
      addresses[i] = reinterpret_cast<uintptr_t>(start) + bindings[i].offset;
    } else if (binding.status().code() == Code::kOutOfRange && memory != nullptr) {
      // The engine finds the same. Any other slot stays unbound, which it refuses too: the launch fails on
      // all ranks.
      entry->bindings[i] = {memory->registration_id(), memory->registration_offset() + bindings[i].offset};
    }
    if (!binding.ok() && status.ok()) status = OfSlot(i, binding.status());
  }
  const std::optional<SlotOverlap::Pair> shared = overlap_.Find(addresses);
  if (!shared.has_value()) return status;
  const auto second = static_cast<size_t>(shared->second);
  entry->bindings[second] = {};
  return status.ok() ? OfSlot(second, Overlaps(shared->first)) : status;
}

}  // namespace tandem::client
