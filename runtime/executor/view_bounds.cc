#include "runtime/executor/view_bounds.h"

#include <string>

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
  if (!IsValid(view.dtype) || view.extent.size() != view.stride.size()) {
    return InvalidArgument(std::string(name) + ": malformed view");
  }
  int64_t last = 0;
  bool empty = false, overflow = false;
  for (size_t d = 0; d < view.extent.size(); ++d) {
    if (view.extent[d] < 0 || view.stride[d] < 0)
      return InvalidArgument(std::string(name) + ": negative extent");
    empty = empty || view.extent[d] == 0;
    int64_t reach = 0;
    overflow = overflow || __builtin_mul_overflow(view.extent[d] - 1, view.stride[d], &reach) ||
               __builtin_add_overflow(last, reach, &last);
  }
  if (empty) return true;
  uint64_t element = DTypeBytes(view.dtype), end = 0;
  overflow = overflow || __builtin_mul_overflow(static_cast<uint64_t>(last) + 1, element, &end) ||
             __builtin_add_overflow(end, view.ref.offset, &end);
  if (overflow || end > limit) {
    return OutOfRange(std::string(name) + ": ends beyond the " + std::to_string(limit) + " bytes there are");
  }
  if (view.ref.offset % element != 0) return InvalidArgument(std::string(name) + ": unaligned offset");
  return false;
}

}  // namespace tandem::runtime
