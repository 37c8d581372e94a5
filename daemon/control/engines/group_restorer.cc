#include "daemon/control/engines/group_restorer.h"

#include <chrono>
#include <mutex>
#include <string>

namespace tandem::daemon {
namespace {

constexpr std::chrono::seconds kInstallDeadline{60};
constexpr std::chrono::milliseconds kRetryPause{100};

}  // namespace

void GroupRestorer::Restore(const std::shared_ptr<GroupRecord>& group) {
  Registry& registry = core_.registry;
  std::lock_guard work(group->work);
  {
    RegistryLock lock(registry);
    if (group->state() != GroupState::kSuspended || registry.stopping) return;
    if (!registry.AllUp(group->gpus)) return;  // the next engine that comes up comes back to it
    ++group->generation;
    group->engine_stall.Apply(StallEvent::kEnginesRestarted);
    registry.Touch(*group);
  }
  Status status =
      installer_.Install(*group, GroupInstaller::ForAllRanks(group, Waiter::Clock::now() + kInstallDeadline));
  RegistryLock lock(registry);
  registry.Touch(*group);
  if (group->state() != GroupState::kSuspended) {
    // It broke or ended meanwhile: the engines forget the group that they have just received.
    installer_.Uninstall(*group, -1);
    return;
  }
  // An engine that had received the group may have ended before the last one did: its end passed over a
  // suspended group.
  if (status.ok() && !installer_.SameEngines(*group)) {
    status = Unavailable("an engine ended while the group was restored");
  }
  if (!status.ok()) {
    if (status.detail().reason != "ENGINE_DOWN" && status.code() != Code::kUnavailable) {
      groups_.Break(*group, status.WithContext("group '" + group->name + "' could not be restored"), -1);
      return;
    }
    // Another engine went: what the others were given goes, and the next engine that comes up comes back to
    // it.
    installer_.Uninstall(*group, -1);
    // Its end may not have been reported yet: no hurry.
    registry.engines_changed.wait_for(lock.fused(), kRetryPause);
    if (registry.AllUp(group->gpus) && !registry.stopping) RestoreSoon(group);
    return;
  }
  group->lifecycle.Apply(GroupEvent::kRestored);
  const Status restarted(Code::kAborted,
                         "an engine of group '" + group->name +
                             "' was restarted: launches in flight ended, plans and " +
                             "memory go on as generation " + std::to_string(group->generation),
                         {.reason = "ENGINE_RESTARTED", .who = {}, .field = {}});
  groups_.PostEvent(*group, GroupService::EventOf(*group, v1::Event::ENGINE_RESTARTED, -1, restarted), -1);
  registry.engines_changed.notify_all();
  core_.LogOf(
      group->payer.uid, LogSeverity::kInfo,
      "group=" + std::to_string(group->id) + " restored generation=" + std::to_string(group->generation));
}

}  // namespace tandem::daemon
