#include "daemon/control/registry.h"

#include <algorithm>

#include "ipc/order_log.h"

namespace tandem::daemon {

void Meeting::Resize(size_t world) {
  seated.resize(world);
  told.resize(world);
  cancelled.resize(world);
  waiting.resize(world);
}

void Meeting::Seat(size_t rank) {
  seated[rank] = true;
  told[rank] = cancelled[rank] = false;
}

Status Meeting::Await(std::unique_lock<std::mutex>& lock, size_t rank, const std::string& what,
                      const std::string& did, const Waiter& waiter) {
  ++waiting[rank];
  const bool done = waiter.Wait(lock, changed, [&] { return phase == Phase::kDone; });
  --waiting[rank];
  if (done) return Status::Ok();
  if (waiter.Cancelled()) {
    // The call is gone, not the rank: it may ask again, and the others go on waiting for it.
    if (phase == Phase::kWaiting && waiting[rank] == 0) {
      seated[rank] = false;
      cancelled[rank] = true;
    }
    return Status(Code::kCancelled, "the caller went away");
  }
  if (phase == Phase::kWorking) {
    return Status(Code::kDeadlineExceeded,
                  what + ": all ranks have come, and the engines are being told; a repeated call waits on",
                  {.reason = "UNDER_WAY", .who = {}, .field = {}});
  }
  std::string late, gone;
  for (size_t peer = 0; peer < seated.size(); ++peer) {
    if (seated[peer]) continue;
    late += (late.empty() ? "rank " : ", rank ") + std::to_string(peer);
    if (cancelled[peer])
      gone += (gone.empty() ? " (whose call was cancelled: rank " : ", rank ") + std::to_string(peer);
  }
  phase = Phase::kDone;
  status = Status(Code::kDeadlineExceeded,
                  what + ": " + late + " did not " + did + " in time" + (gone.empty() ? "" : gone + ")"),
                  {.reason = "RANK_LATE", .who = late, .field = {}});
  changed.notify_all();
  return Status::Ok();
}

bool Meeting::Empty() const {
  return std::none_of(seated.begin(), seated.end(), [](bool s) { return s; });
}

bool Meeting::AllTold() const {
  return std::all_of(told.begin(), told.end(), [](bool t) { return t; });
}

bool Registry::Has(const Group& group) const {
  const auto it = groups.find(group.id);
  return it != groups.end() && it->second.get() == &group;
}

uint64_t Registry::NewGroupId() {
  const auto taken = [&](uint64_t id) {
    return std::any_of(groups.begin(), groups.end(),
                       [&](const auto& group) { return ((group.first ^ id) & kLogIdMask) == 0; });
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
