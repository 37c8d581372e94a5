#include "daemon/control/engines/engine_service.h"

#include <chrono>
#include <utility>
#include <vector>

#include "daemon/control/base/blame.h"

namespace tandem::daemon {
namespace {

// An engine for which another one waits ends if it is silent for so long.
constexpr std::chrono::milliseconds kSilentPeerLimit{3000};

}  // namespace

void EngineService::OnUp(int gpu, uint64_t generation) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  if (registry.stopping || registry.GenerationOf(gpu) == generation) return;
  registry.engine_generation[static_cast<size_t>(gpu)] = generation;
  registry.MailboxOf(gpu).SetGeneration(generation);
  registry.engine_uses[static_cast<size_t>(gpu)].unused_since = Waiter::Clock::now();
  to_.segments.SendAgain(gpu);
  to_.registrations.SendAgain(gpu);
  to_.client_memory.SendAgain(gpu);
  for (const auto& [id, group] : registry.groups) {
    if (group->state() != GroupState::kSuspended || !group->UsesGpu(gpu)) continue;
    if (registry.AllUp(group->gpus)) to_.restorer.RestoreSoon(group);
  }
  registry.engines_changed.notify_all();
  core_.Log(LogSeverity::kInfo,
            "gpu=" + std::to_string(gpu) + " engine up generation=" + std::to_string(generation));
}

void EngineService::OnDown(int gpu, uint64_t generation, const std::string& reason) {
  // Under MPS the clients on that GPU have lost their contexts with the engine: their groups cannot go on.
  const bool context_lost = core_.engines.StatusOf(gpu).context_lost;
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  const uint64_t known = registry.GenerationOf(gpu);
  if (known == 0 || known != generation) return;
  registry.engine_generation[static_cast<size_t>(gpu)] = 0;
  registry.MailboxOf(gpu).SetGeneration(0);
  const bool stopping = registry.stopping;  // then the engine has been asked to end
  const Status ended =
      stopping
          ? Unavailable("the daemon is stopping")
          : Status(Code::kAborted, "the engine of GPU " + std::to_string(gpu) + " ended (" + reason + ")",
                   BlameGpu("ENGINE_RESTARTED", gpu));
  to_.channels.ReleaseOf(gpu, ended);
  to_.launches.EndAllOf(gpu, ended);
  if (context_lost && !stopping) BreakGroupsOfLostContext(gpu, ended.message());
  SuspendGroups(gpu, ended);
  registry.engines_changed.notify_all();
  core_.Log(stopping ? LogSeverity::kInfo : LogSeverity::kError,
            "gpu=" + std::to_string(gpu) + " engine ended (" + reason + ")");
}

bool EngineService::MayRest(int gpu, uint64_t generation) {
  if (core_.options.engine_idle.count() == 0) return false;
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  const Registry::EngineUse& use = registry.engine_uses[static_cast<size_t>(gpu)];
  if (registry.stopping || registry.GenerationOf(gpu) != generation || use.sessions != 0) return false;
  if (Waiter::Clock::now() - use.unused_since < core_.options.engine_idle) return false;
  for (const auto& [id, group] : registry.groups) {
    if (group->UsesGpu(gpu)) return false;  // its ranks have left, and its end is not through
  }
  registry.engine_generation[static_cast<size_t>(gpu)] = 0;
  registry.MailboxOf(gpu).SetGeneration(0);
  return true;
}

void EngineService::SuspendGroups(int gpu, const Status& ended) {
  for (const auto& [id, group] : core_.registry.groups) {
    const GroupState state = group->state();
    // The call that installs a group compares the engines itself, afterwards.
    if (!group->UsesGpu(gpu) || (state != GroupState::kReady && state != GroupState::kClosing)) continue;
    core_.registry.PostToAll(*group, BreakCommand(id, ended), nullptr, gpu);
    group->lifecycle.Apply(GroupEvent::kEngineEnded);
    core_.registry.Touch(*group);
    if (state == GroupState::kReady) {
      to_.installer.Uninstall(*group, gpu);
    } else {
      to_.groups.BreakClosing(*group);
    }
  }
}

void EngineService::BreakGroupsOfLostContext(int gpu, const std::string& text) {
  for (const auto& [id, group] : core_.registry.groups) {
    if (!group->UsesGpu(gpu)) continue;
    size_t rank = 0;
    while (group->gpus[rank] != gpu) ++rank;
    StatusDetail detail = BlameGpu("GPU_CONTEXT_LOST", gpu);
    detail.ranks = {static_cast<uint32_t>(rank)};
    // Nobody of the group has been lost yet; the rank on that GPU will find its own context gone.
    to_.groups.Break(*group,
                     Unavailable("group '" + group->name + "', rank " + std::to_string(rank) + ": " + text +
                                 "; under MPS every process on that GPU has lost its context and must end")
                         .WithDetail(std::move(detail)),
                     -1);
  }
}

// Every rank's engine finds a stall by itself. A report from before a renewal, or of engines before, comes
// too late.
void EngineService::NoteStall(const engine::v1::LaunchFailed& failed) {
  RegistryLock lock(core_.registry);
  const auto it = core_.registry.groups.find(failed.group_id());
  if (it == core_.registry.groups.end()) return;
  GroupRecord& group = *it->second;
  if (group.generation != failed.generation() || group.engine_renewals != failed.renewals()) return;
  StatusDetail detail{.reason = failed.reason(), .who = failed.who()};
  detail.ranks.assign(failed.ranks().begin(), failed.ranks().end());
  if (detail.ranks.size() == 1 && detail.ranks[0] < group.world())
    detail.pid = group.members[detail.ranks[0]].pid;
  to_.groups.NoteEnginesStalled(
      group, Status(static_cast<Code>(failed.code()), "group '" + group.name + "': " + failed.message(),
                    std::move(detail)));
}

void EngineService::OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) {
  if (failed.stalls_group()) return NoteStall(failed);
  if (failed.breaks_group()) {
    Registry& registry = core_.registry;
    RegistryLock lock(registry);
    // Every rank's engine finds out by itself: the first one's reason stands.
    const auto it = registry.groups.find(failed.group_id());
    if (it == registry.groups.end() || it->second->generation != failed.generation()) return;
    if (!it->second->Lives()) return;
    const auto code = static_cast<Code>(failed.code());
    StatusDetail detail{.reason = code == Code::kDeadlineExceeded ? "LAUNCH_OVERDUE" : "LAUNCH_FAILED",
                        .who = failed.who()};
    detail.ranks.assign(failed.ranks().begin(), failed.ranks().end());
    to_.groups.Break(*it->second,
                     Status(code, "group '" + it->second->name + "': " + failed.message(), std::move(detail)),
                     -1);
    return;
  }
  core_.LogOf(std::nullopt, LogSeverity::kWarning,
              "gpu=" + std::to_string(gpu) + " group=" + std::to_string(failed.group_id()) +
                  " plan=" + std::to_string(failed.plan_id()) + " launch=" + std::to_string(failed.launch()) +
                  " failed: " + failed.message());
}

void EngineService::OnLate(const engine::v1::Late& late) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  const auto it = registry.groups.find(late.group_id());
  if (it == registry.groups.end()) return;
  GroupRecord& group = *it->second;
  const auto [last, first_report] = group.late_launches.try_emplace(late.plan_id(), late.launch());
  if (!first_report && late.launch() <= last->second) return;
  last->second = late.launch();
  std::vector<uint32_t> ranks;
  for (const int rank : late.missing_ranks()) ranks.push_back(static_cast<uint32_t>(rank));
  const auto plan = group.plans.find(late.plan_id());
  const Status status(
      Code::kDeadlineExceeded,
      "launch " + std::to_string(late.launch()) + " of plan " + std::to_string(late.plan_id()) +
          (plan == group.plans.end() ? std::string() : " ('" + plan->second.key + "')") + " in group '" +
          group.name + "' has waited for a second; not arrived: " + RankList(ranks),
      BlameRanks("RANK_LATE", ranks));
  const int first = ranks.empty() ? -1 : static_cast<int>(ranks[0]);
  to_.groups.PostEvent(group, GroupService::EventOf(group, v1::Event::LATE, first, status), -1);
  core_.LogOf(group.payer.uid, LogSeverity::kWarning,
              "group=" + std::to_string(group.id) + " " + status.message());
}

void EngineService::OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) {
  core_.Log(LogSeverity::kWarning,
            "gpu=" + std::to_string(gpu) + " group=" + std::to_string(silent.group_id()) +
                " its lanes wait for the engine of GPU " + std::to_string(silent.gpu()) +
                " to report that the group is broken there");
  core_.engines.DemandAnswer(silent.gpu(), kSilentPeerLimit);
}

}  // namespace tandem::daemon
