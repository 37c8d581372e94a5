// Plan: the memory that a launch's slots are bound to.
#include <algorithm>

#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/digest.h"

namespace tandem::client {
namespace {

Status BindingError(Status status, const char* reason) { return status.WithDetail({.reason = reason}); }

std::string FieldOf(size_t slot) { return "bindings[" + std::to_string(slot) + "]"; }

}  // namespace

Status PlanHandle::OfSlot(size_t i, const Status& error) const {
  StatusDetail detail = error.detail();
  detail.field = FieldOf(i);
  detail.started = false;  // it is refused on all ranks
  return error.WithContext("slot " + std::to_string(i) + " of plan '" + info_.key + "'")
      .WithDetail(std::move(detail));
}

Result<LaunchBinding> PlanHandle::Resolve(ClientDevice& device, size_t i, const Binding& binding,
                                          BoundRegistrations* bound) const {
  uint64_t needed = info_.slot_bytes[i];
  if (binding.memory == nullptr) {
    if (binding.pointer == nullptr) return BindingError(InvalidArgument("is not bound"), "NOT_BOUND");
    return session().registrations().Resolve(session().control(), device, group_->id(), group_->gpu_uuid(),
                                             static_cast<const std::byte*>(binding.pointer) + binding.offset,
                                             needed, bound);
  }
  const Memory& memory = *binding.memory;
  if (binding.offset > memory.bytes() || needed > memory.bytes() - binding.offset) {
    return BindingError(
        OutOfRange("needs " + std::to_string(needed) + " bytes from offset " +
                   std::to_string(binding.offset) + ", the memory has " + std::to_string(memory.bytes())),
        "BINDING_TOO_SMALL");
  }
  TANDEM_RETURN_IF_ERROR(memory.Check());
  if (!memory.gpu_uuid().empty() && memory.gpu_uuid() != group_->gpu_uuid()) {
    return BindingError(InvalidArgument("the memory is on " + memory.gpu_uuid() + ", the group's rank has " +
                                        group_->gpu_uuid()),
                        "WRONG_DEVICE");
  }
  // Such a handle only names the memory: the user may drop it at once.
  if (auto* foreign = dynamic_cast<const ForeignClientMemory*>(&memory)) bound->Add(foreign->registration());
  return LaunchBinding{memory.registration_id(), memory.registration_offset() + binding.offset};
}

Status PlanHandle::FillEntry(ClientDevice& device, std::span<const Binding> bindings,
                             const LaunchOptions& options, LaunchEntry* entry,
                             BoundRegistrations* bound) const {
  entry->plan_id = info_.plan_id;
  entry->deadline_ns = static_cast<uint64_t>(Bounded(options.deadline).count()) * 1'000'000;
  entry->tag_digest = TagDigest(options.tag);
  entry->binding_count = static_cast<uint32_t>(std::min(bindings.size(), static_cast<size_t>(kMaxBindings)));
  Status status;
  if (bindings.size() != info_.slot_bytes.size()) {
    status = InvalidArgument("plan '" + info_.key + "' has " + std::to_string(info_.slot_bytes.size()) +
                             " slots, the launch binds " + std::to_string(bindings.size()))
                 .WithDetail({.reason = "BINDING_COUNT", .field = "bindings", .started = false});
  }
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
  const std::string first = std::to_string(shared->first);
  const Status overlaps =
      InvalidArgument("overlaps slot " + first +
                      " in memory, and the launch writes one of both: bind them apart, or " +
                      "prepare the plan with this slot's alias_of = " + first)
          .WithDetail({.reason = "SLOTS_OVERLAP"});
  return status.ok() ? OfSlot(second, overlaps) : status;
}

}  // namespace tandem::client
