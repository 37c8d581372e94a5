// Plan: checks of the memory that a launch's slots are bound to.
#include <algorithm>
#include <string>
#include <utility>

#include "client/lib/handles.h"
#include "client/lib/plan_handle.h"

namespace tandem::client {

Status PlanHandle::OfSlot(size_t i, const Status& error) const {
  StatusDetail detail = error.detail();
  detail.field = "bindings[" + std::to_string(i) + "]";
  detail.started = false;  // it is refused on all ranks
  return error.WithContext("slot " + std::to_string(i) + " of plan '" + info_.key + "'")
      .WithDetail(std::move(detail));
}

Status PlanHandle::BindingError(const Status& status, const char* reason) {
  return status.WithDetail({.reason = reason});
}

Status PlanHandle::CheckCount(size_t bindings) const {
  if (bindings == info_.slot_bytes.size()) return Status::Ok();
  return InvalidArgument("plan '" + info_.key + "' has " + std::to_string(info_.slot_bytes.size()) +
                         " slots, the launch binds " + std::to_string(bindings))
      .WithDetail({.reason = "BINDING_COUNT", .field = "bindings", .started = false});
}

Status PlanHandle::CheckRoom(const Memory& memory, uint64_t offset, uint64_t needed) {
  if (offset <= memory.bytes() && needed <= memory.bytes() - offset) return Status::Ok();
  return BindingError(
      OutOfRange("needs " + std::to_string(needed) + " bytes from offset " + std::to_string(offset) +
                 ", the memory has " + std::to_string(memory.bytes())),
      "BINDING_TOO_SMALL");
}

Status PlanHandle::CheckDevice(const Memory& memory) const {
  TANDEM_RETURN_IF_ERROR(memory.Check());
  if (memory.gpu_uuid().empty() || memory.gpu_uuid() == group_->gpu_uuid()) return Status::Ok();
  return BindingError(InvalidArgument("the memory is on " + memory.gpu_uuid() + ", the group's rank has " +
                                      group_->gpu_uuid()),
                      "WRONG_DEVICE");
}

Status PlanHandle::CheckAlignment(size_t i, const std::byte* start) const {
  const size_t alignment = i < rules_.size() ? rules_[i].alignment : 1;
  if (reinterpret_cast<uintptr_t>(start) % alignment == 0) return Status::Ok();
  return BindingError(InvalidArgument("begins at an address that is no multiple of the " +
                                      std::to_string(alignment) + " bytes of an element"),
                      "NOT_ALIGNED");
}

Status PlanHandle::NotBound() { return BindingError(InvalidArgument("is not bound"), "NOT_BOUND"); }

Status PlanHandle::NotSymmetric() {
  return BindingError(InvalidArgument("is symmetric, and bound to no symmetric tensor of the group"),
                      "NOT_SYMMETRIC");
}

Status PlanHandle::Overlaps(const SlotOverlap::Pair& pair) {
  const std::string first = std::to_string(pair.first);
  return BindingError(InvalidArgument("overlaps slot " + first +
                                      " in memory, and the launch writes one of both: bind them apart, or " +
                                      "prepare the plan with this slot's alias_of = " + first),
                      "SLOTS_OVERLAP");
}

}  // namespace tandem::client
