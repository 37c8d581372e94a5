#include "runtime/executor/view_bounds.h"

#include <string>

#include "program/byte_box.h"

namespace tandem::runtime {

using plan::Space;

Status CheckFrame(const plan::RankProgram& program, const ProgramLimits& limits) {
  if (program.world_size != limits.world_size || program.rank != limits.rank) {
    return InvalidArgument("a program of rank " + std::to_string(program.rank) + " of " +
                           std::to_string(program.world_size) + " for rank " + std::to_string(limits.rank) +
                           " of " + std::to_string(limits.world_size));
  }
  if (limits.world_size < 1 || limits.world_size > plan::kMaxWorldSize || limits.rank < 0 ||
      limits.rank >= limits.world_size) {
    return OutOfRange("rank " + std::to_string(limits.rank) + " of " + std::to_string(limits.world_size));
  }
  if (program.lanes < 1 || program.lanes > plan::kMaxLanes) {
    return OutOfRange(std::to_string(program.lanes) + " lanes");
  }
  if (program.workspace_bytes > limits.workspace_bytes || program.bulk_bytes > limits.bulk_bytes) {
    return OutOfRange("the program needs " + std::to_string(program.workspace_bytes) +
                      " bytes of workspace and " + std::to_string(program.bulk_bytes) +
                      " of bulk; there are " + std::to_string(limits.workspace_bytes) + " and " +
                      std::to_string(limits.bulk_bytes));
  }
  return Status::Ok();
}

Result<uint64_t> LimitOf(const plan::View& view, const plan::RankProgram& program,
                         const ProgramLimits& limits, const char* name) {
  if (view.ref.rank >= program.world_size) {
    return OutOfRange(std::string(name) + ": rank " + std::to_string(view.ref.rank));
  }
  switch (view.ref.space) {
    case Space::kWorkspace: return program.workspace_bytes;
    case Space::kBulk: return program.bulk_bytes;
    case Space::kOperand: break;
    default: return InvalidArgument(std::string(name) + ": unknown space");
  }
  if (view.ref.slot >= limits.slots.size()) {
    return OutOfRange(std::string(name) + ": slot " + std::to_string(view.ref.slot));
  }
  const SlotLimit& slot = limits.slots[view.ref.slot];
  if (view.ref.rank != program.rank && !slot.symmetric) {
    return InvalidArgument(std::string(name) + ": slot " + std::to_string(view.ref.slot) +
                           " of a peer, but the slot is not symmetric");
  }
  return slot.bytes;
}

Result<bool> CheckInside(const plan::View& view, uint64_t limit, const char* name) {
  const Result<plan::ByteBox> box = plan::BoxOf(view);
  if (!box.ok()) return box.status().WithContext(name);
  if (box->end > limit && !box->empty()) {
    return OutOfRange(std::string(name) + ": ends beyond the " + std::to_string(limit) + " bytes there are");
  }
  return box->empty();
}

}  // namespace tandem::runtime
