#include "daemon/control/registry.h"

#include <algorithm>

#include "daemon/engine/order_log.h"

namespace tandem::daemon {

bool Registry::Has(const Group& group) const {
  const auto it = groups.find(group.id);
  return it != groups.end() && it->second.get() == &group;
}

uint64_t Registry::NewGroupId() {
  const auto taken = [&](uint64_t id) {
    return std::any_of(groups.begin(), groups.end(), [&](const auto& group) { return ((group.first ^ id) & kLogIdMask) == 0; });
  };
  while (taken(next_id)) ++next_id;
  return next_id++;
}

uint64_t Registry::NewPlanId() {
  if (plan_groups.size() >= kLogIdMask) return 0;
  for (;;) {
    const uint64_t id = next_plan_id;
    next_plan_id = id == kLogIdMask ? 1 : id + 1;
    if (!plan_groups.contains(id)) return id;
  }
}

}  // namespace tandem::daemon
