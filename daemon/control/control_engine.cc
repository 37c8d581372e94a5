// What engines report: their restarts, above all. When an engine goes, the groups with its GPU are taken off
// the others; when it is back, it gets its segments by the descriptors that we kept, and the groups are
// installed again under a new generation. Sessions, memory and plans go on. Where the engine fell with every
// other process on its GPU (shared fate under MPS), its groups break instead.
#include <algorithm>

#include "daemon/control/background_worker.h"
#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "ipc/channel.h"

namespace tandem::daemon {
namespace {

constexpr std::chrono::seconds kInstallDeadline{60};
constexpr std::chrono::milliseconds kRetryPause{100};
// An engine for which another one waits ends if it is silent for so long.
constexpr std::chrono::milliseconds kSilentPeerLimit{3000};

bool UsesGpu(const Group& group, int gpu) {
  return std::any_of(group.members.begin(), group.members.end(),
                     [&](const Member& m) { return m.gpu == gpu; });
}

}  // namespace

void Control::OnEngineUp(int gpu, uint64_t generation) {
  Lock lock(registry_->mutex);
  if (registry_->stopping) return;
  const size_t g = static_cast<size_t>(gpu);
  EngineMailbox& mailbox = *registry_->mailboxes[g];
  if (registry_->engine_generation[g] == generation) return;
  registry_->engine_generation[g] = generation;
  mailbox.SetGeneration(generation);
  for (const auto& set : registry_->sets) {
    for (size_t rank = 0; rank < set->segment_ids.size(); ++rank) {
      if (!(set->mapped[rank] & (1u << gpu)) || !set->fds[rank]) continue;
      engine::v1::Command command;
      command.mutable_add_segment()->set_segment_id(set->segment_ids[rank]);
      command.mutable_add_segment()->set_bytes(set->bytes);
      mailbox.Post(std::move(command), {set->fds[rank]});
    }
  }
  for (const auto& [id, session] : registry_->sessions) {
    for (const auto& [registration_id, registration] : session->registrations) {
      if (registration.gpu == gpu) PostOwnRegistrationLocked(*session, registration_id, nullptr);
    }
  }
  for (const auto& [id, group] : registry_->groups) {
    if (!group->suspended || !UsesGpu(*group, gpu)) continue;
    const bool all_up = std::all_of(group->members.begin(), group->members.end(), [&](const Member& m) {
      return registry_->engine_generation[static_cast<size_t>(m.gpu)] != 0;
    });
    if (all_up) background_->Post([this, group = group] { RestoreGroup(group); });
  }
  registry_->engines_changed.notify_all();
  Log(LogSeverity::kInfo,
      "gpu=" + std::to_string(gpu) + " engine up generation=" + std::to_string(generation));
}

void Control::OnEngineDown(int gpu, uint64_t generation, const std::string& reason) {
  // Under MPS the clients on that GPU have lost their contexts with the engine: their groups cannot go on.
  const bool shared_fate = engines_.StatusOf(gpu).shared_fate;
  Lock lock(registry_->mutex);
  const size_t g = static_cast<size_t>(gpu);
  if (registry_->engine_generation[g] == 0 || registry_->engine_generation[g] != generation) return;
  registry_->engine_generation[g] = 0;
  registry_->mailboxes[g]->SetGeneration(0);
  const bool stopping = registry_->stopping;  // then the engine has been asked to end
  const Code code = stopping ? Code::kUnavailable : Code::kAborted;
  const std::string text = stopping ? "the daemon is stopping"
                                    : "the engine of GPU " + std::to_string(gpu) + " ended (" + reason + ")";
  const std::string who = stopping ? "" : "gpu " + std::to_string(gpu);
  const Status ended(code, text, {.reason = stopping ? "" : "ENGINE_RESTARTED", .who = who, .field = {}});
  for (const auto& [id, session] : registry_->sessions) {
    for (auto& [channel_id, channel] : session->channels) {
      if (channel.gpu != gpu || channel.over) continue;
      channel.over = true;
      // The client's watchdog repeats it until its stream has drained.
      Result<ChannelWords> words = ChannelWords::Map(channel.words->get(), channel.entries);
      if (words.ok()) words->Release(ended);
    }
    bool any = false;
    for (auto& [launch_id, launch] : session->launches) {
      if (launch.gpu != gpu || launch.done) continue;
      launch.done = any = true;
      launch.status = ended;
    }
    if (any) session->launches_changed.notify_all();
  }
  if (shared_fate && !stopping) BreakGroupsOfGpuLocked(gpu, text);
  for (const auto& [id, group] : registry_->groups) {
    if (!UsesGpu(*group, gpu) || group->suspended) continue;
    if (group->state == GroupState::kJoining)
      continue;  // who installs it looks whether the engines are still the same
    engine::v1::Command command;
    command.mutable_break_group()->set_group_id(id);
    command.mutable_break_group()->set_code(static_cast<int>(code));
    command.mutable_break_group()->set_message(text);
    command.mutable_break_group()->set_reason(ended.detail().reason);
    command.mutable_break_group()->set_who(who);
    if (group->state == GroupState::kReady || group->state == GroupState::kClosing) {
      for (const Member& member : group->members) {
        if (member.gpu != gpu) registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command);
      }
      BreakByLogLocked(*group);
    }
    if (group->state == GroupState::kReady) {
      group->suspended = true;
      UninstallLocked(*group, gpu);
    }
    if (group->state == GroupState::kClosing) BreakLeftGroupLocked(*group);
  }
  registry_->engines_changed.notify_all();
  Log(stopping ? LogSeverity::kInfo : LogSeverity::kError,
      "gpu=" + std::to_string(gpu) + " engine ended (" + reason + ")");
}

void Control::BreakGroupsOfGpuLocked(int gpu, const std::string& text) {
  for (const auto& [id, group] : registry_->groups) {
    if (!UsesGpu(*group, gpu)) continue;
    size_t rank = 0;
    while (group->members[rank].gpu != gpu) ++rank;
    // Nobody of it has been lost yet; the rank on that GPU will find its own context gone.
    BreakGroupLocked(*group,
                     Status(Code::kUnavailable,
                            "group '" + group->name + "', rank " + std::to_string(rank) + ": " + text +
                                "; under MPS every process on that GPU has lost its context and must end",
                            {.reason = "SHARED_FATE", .who = "gpu " + std::to_string(gpu), .field = {}}),
                     -1);
  }
}

void Control::RestoreGroup(const std::shared_ptr<Group>& group) {
  std::lock_guard work(group->work);
  {
    Lock lock(registry_->mutex);
    if (!group->suspended || group->state != GroupState::kReady || registry_->stopping) return;
    const bool all_up = std::all_of(group->members.begin(), group->members.end(), [&](const Member& m) {
      return registry_->engine_generation[static_cast<size_t>(m.gpu)] != 0;
    });
    if (!all_up) return;  // the next OnEngineUp comes back to it
    ++group->generation;
  }
  Status status = Install(*group, ForAllRanks(group, Waiter::Clock::now() + kInstallDeadline));
  Lock lock(registry_->mutex);
  if (group->state != GroupState::kReady) {
    // It broke or ended meanwhile: what has just been installed goes again.
    UninstallLocked(*group, -1);
    return;
  }
  // One that had been told may have ended before the last one was: its end passed over a group that was
  // suspended already.
  if (status.ok() && !SameEnginesLocked(*group))
    status = Unavailable("an engine ended while the group was restored");
  if (!status.ok()) {
    if (status.detail().reason == "ENGINE_DOWN" || status.code() == Code::kUnavailable) {
      // Another engine went: what the others were given goes, and the next OnEngineUp comes back to it.
      UninstallLocked(*group, -1);
      // Its end may not have been reported yet: no hurry.
      registry_->engines_changed.wait_for(lock, kRetryPause);
      bool all_up = true;
      for (const Member& m : group->members)
        all_up &= registry_->engine_generation[static_cast<size_t>(m.gpu)] != 0;
      if (all_up && !registry_->stopping) background_->Post([this, group] { RestoreGroup(group); });
      return;
    }
    group->suspended = false;
    BreakGroupLocked(*group, status.WithContext("group '" + group->name + "' could not be restored"), -1);
    return;
  }
  group->suspended = false;
  v1::Event event;
  event.set_kind(v1::Event::ENGINE_RESTARTED);
  event.set_group_id(group->id);
  event.set_rank(-1);
  event.set_generation(group->generation);
  event.mutable_status()->set_code(static_cast<int>(Code::kAborted));
  event.mutable_status()->set_reason("ENGINE_RESTARTED");
  event.mutable_status()->set_message("an engine of group '" + group->name +
                                      "' was restarted: launches in flight ended, "
                                      "plans and memory go on as generation " +
                                      std::to_string(group->generation));
  PostGroupEventLocked(*group, event, -1);
  registry_->engines_changed.notify_all();
  group->changed.notify_all();
  Log(LogSeverity::kInfo,
      "group=" + std::to_string(group->id) + " restored generation=" + std::to_string(group->generation));
}

void Control::OnLaunchDone(int gpu, const engine::v1::LaunchDone& done) {
  StatusDetail detail{.reason = done.reason(), .who = done.who()};
  detail.ranks.assign(done.ranks().begin(), done.ranks().end());
  if (done.has_started()) detail.started = done.started();
  EndLaunch(gpu, done.launch_id(),
            done.code() == 0 ? Status::Ok()
                             : Status(static_cast<Code>(done.code()), done.message(), std::move(detail)));
}

void Control::EndLaunch(int gpu, uint64_t launch_id, Status status) {
  Lock lock(registry_->mutex);
  auto it = registry_->launches.find(launch_id);
  const SessionRef session = it == registry_->launches.end() ? nullptr : it->second.lock();
  if (!session) return;
  auto launch = session->launches.find(launch_id);
  if (launch == session->launches.end() || launch->second.gpu != gpu || launch->second.done) return;
  launch->second.done = true;
  launch->second.status = std::move(status);
  session->launches_changed.notify_all();
}

void Control::OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) {
  {
    Lock lock(registry_->mutex);
    if (failed.breaks_group()) {
      // Every rank's engine finds out by itself: the first one's reason stands.
      auto it = registry_->groups.find(failed.group_id());
      if (it == registry_->groups.end() || it->second->state != GroupState::kReady ||
          it->second->generation != failed.generation()) {
        return;
      }
      const auto code = static_cast<Code>(failed.code());
      const char* reason = code == Code::kDeadlineExceeded ? "LAUNCH_OVERDUE" : "LAUNCH_FAILED";
      BreakGroupLocked(*it->second,
                       Status(code, "group '" + it->second->name + "': " + failed.message(),
                              {.reason = reason, .who = failed.who(), .field = {}}),
                       -1);
      return;
    }
    ++registry_->launch_failures[failed.code()];
  }
  Log(LogSeverity::kWarning, "gpu=" + std::to_string(gpu) + " group=" + std::to_string(failed.group_id()) +
                                 " plan=" + std::to_string(failed.plan_id()) + " launch=" +
                                 std::to_string(failed.launch()) + " failed: " + failed.message());
}

void Control::OnLate(int, const engine::v1::Late& late) {
  Lock lock(registry_->mutex);
  auto it = registry_->groups.find(late.group_id());
  if (it == registry_->groups.end()) return;
  std::string ranks;
  for (int rank : late.missing_ranks()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  auto plan = it->second->plans.find(late.plan_id());
  v1::Event event;
  event.set_kind(v1::Event::LATE);
  event.set_group_id(late.group_id());
  event.set_rank(late.missing_ranks_size() > 0 ? late.missing_ranks(0) : -1);
  event.set_generation(it->second->generation);
  event.mutable_status()->set_code(static_cast<int>(Code::kDeadlineExceeded));
  event.mutable_status()->set_reason("RANK_LATE");
  event.mutable_status()->set_who("rank " + ranks);
  event.mutable_status()->set_message(
      "launch " + std::to_string(late.launch()) + " of plan " + std::to_string(late.plan_id()) +
      (plan == it->second->plans.end() ? std::string() : " ('" + plan->second.key + "')") + " in group '" +
      it->second->name + "' has waited for a second; not arrived: rank " + ranks);
  PostGroupEventLocked(*it->second, event, -1);
  Log(LogSeverity::kWarning, "group=" + std::to_string(late.group_id()) + " " + event.status().message());
}

void Control::OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) {
  Log(LogSeverity::kWarning, "gpu=" + std::to_string(gpu) + " group=" + std::to_string(silent.group_id()) +
                                 " its lanes wait for the engine of GPU " + std::to_string(silent.gpu()) +
                                 " to say that the group is broken there");
  engines_.DemandAnswer(silent.gpu(), kSilentPeerLimit);
}

}  // namespace tandem::daemon
