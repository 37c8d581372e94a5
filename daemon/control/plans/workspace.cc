#include "daemon/control/plans/workspace.h"

#include <algorithm>
#include <memory>

namespace tandem::daemon {

Status WorkspaceService::Grow(GroupRecord& group, uint64_t half_bytes, uint64_t bulk_bytes,
                              const Waiter& waiter) {
  uint64_t half = 0, bulk = 0;
  {
    RegistryLock lock(core_.registry);
    if (half_bytes > group.half_bytes) half = AllocatedHalf(half_bytes);
    if (bulk_bytes > group.bulk_bytes) bulk = std::max(bulk_bytes, 2 * group.bulk_bytes);
  }
  if (half == 0 && bulk == 0) return Status::Ok();
  std::shared_ptr<SegmentSet> half0, half1, area;
  Status status;
  const auto make = [&](uint64_t bytes, const char* purpose, std::shared_ptr<SegmentSet>* set) {
    if (bytes == 0 || !status.ok()) return;
    Result<std::shared_ptr<SegmentSet>> made = segments_.MakeSet(group, bytes, purpose, waiter);
    if (made.ok()) *set = *made;
    status = made.status();
  };
  make(half, "workspace", &half0);
  make(half, "workspace", &half1);
  make(bulk, "bulk", &area);
  auto batch = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(core_.registry);
    if (status.ok()) status = installer_.Installed(group);
    if (!status.ok()) {
      for (const auto& set : {half0, half1, area}) {
        if (set) segments_.RemoveSet(set);
      }
      return status;
    }
    const auto replace = [&](std::shared_ptr<SegmentSet>* old, const std::shared_ptr<SegmentSet>& fresh)
                             TANDEM_REQUIRES(registry_mutex) {
                               if (!fresh) return;
                               if (*old) group.outgrown.push_back(*old);
                               *old = fresh;
                             };
    core_.registry.Touch(group);
    replace(&group.half0, half0);
    replace(&group.half1, half1);
    replace(&group.bulk, area);
    if (half0) group.half_bytes = half0->bytes;
    if (area) group.bulk_bytes = area->bytes;
    installer_.PostWorkspace(group, batch);
  }
  return batch->Wait(waiter);
}

}  // namespace tandem::daemon
