// How groups break: launches are marked failed on all ranks before any rank's lanes are let go.
//
// A lane that is let go runs on with whatever its buffers hold, and signals its peers as if all were well. So
// a rank
//   1. fails what has not started, marks what is on its lanes as failed, and tells the peers by its word in
//   the arrival table;
//   2. lets its lanes go, and aborts its communicator, when every peer has done the same, has never had the
//   group, or is a process
//      that has ended.
// Parked launches that have not begun are called off in between (parking.cc). The order log carries BREAK as
// well, so that peers hear of it even if tandemd tells them nothing. docs/model/group_break.pml is this
// protocol's model.
#include <algorithm>

#include "common/process_identity.h"
#include "engine/launch/launch_queue.h"
#include "ipc/channel_layout.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kReleaseEveryNs = 200'000;
// How long a BREAK in the log waits for the command that says why.
constexpr uint64_t kBreakGraceNs = 200'000'000;
// How often a peer that has not marked its launches is looked for among the living: that takes system calls.
constexpr uint64_t kLookForPeersEveryNs = 5'000'000;
// A peer's engine that lives and has not marked its launches by then does not go through its loop.
constexpr uint64_t kPeerPatienceNs = 1'000'000'000;

}  // namespace

void LaunchQueue::Break(Group* group, Failure failure) {
  bool first = !group->broken.has_value();
  group->broken = std::move(failure);
  if (!first) return;
  CallOff();
  WithdrawOffers(group);
  std::vector<Plan*> waiting;
  for (Plan* plan : undecided_) {
    if (plan->group == group) waiting.push_back(plan);
  }
  // The log first: a launch for which a rank is missing then cannot start on any rank any more. Of the others
  // a peer may have read the START. It is also for peers that nobody else tells: tandemd may be gone, or not
  // know yet.
  if ((group->in_flight > 0 || !waiting.empty()) && group->world_size > 1) AppendBreak(group);
  for (Plan* plan : waiting) {
    listener_->OnLaunchFailed(*plan, plan->active.count, group->broken->status);
    FailUndecided(plan, *group->broken, MissingMask(*plan) != 0 ? std::optional(false) : std::nullopt);
  }
  Reap();
  for (Plan* plan : in_flight_) {
    // What says done is through and has only not been noted: its client may have read its outcome.
    if (plan->group != group || SaysDone(plan->active)) continue;
    const bool marked = !plan->active.failure.status.ok();
    plan->active.failure = *group->broken;
    plan->active.failure.status = group->broken->status.WithStarted(true);
    listener_->OnLaunchFailed(*plan, plan->active.count, group->broken->status);
    if (!marked) PublishOutcome(plan->active.origin, group->generation, plan->active.failure);
  }
  group->broken_ns = NowNs();
  group->broken_stage = HoldsParked(*group) ? 1 : 2;
  group->arrivals.SetBroken(group->rank, group->broken_stage);
  ServeLanesOfBroken(group, group->broken_ns);
}

void LaunchQueue::AppendBreak(Group* group) {
  if (group->log_told) return;
  group->log_told = true;
  log_.Append({.kind = LogKind::kBreak,
               .mask = 0,
               .plan = static_cast<uint32_t>(group->id) & kLogIdMask,
               .count = static_cast<uint16_t>(group->generation)});
}

void LaunchQueue::LoseGroup(Plan* plan, Failure failure) {
  Group& group = *plan->group;
  // The log first: no engine starts another program of it.
  AppendBreak(&group);
  listener_->OnGroupLost(*plan, plan->active.count, failure.status);
  Break(&group, std::move(failure));
}

void LaunchQueue::MarkLeft(Group* group, int rank) {
  group->left_mask |= static_cast<uint8_t>(1u << rank);
  if (rank == group->rank) AbandonUnarrived(group, nullptr, LogKind::kFailLeft);
}

bool LaunchQueue::PeersMarked(Group* group, uint64_t now, int stage) {
  uint8_t unmarked = 0;
  for (int rank = 0; rank < group->world_size; ++rank) {
    if (rank != group->rank && !group->arrivals.Broken(rank, stage))
      unmarked |= static_cast<uint8_t>(1u << rank);
  }
  unmarked &= static_cast<uint8_t>(~group->gone_mask);
  if (unmarked == 0) return true;
  if (now - group->last_look_ns < kLookForPeersEveryNs) return false;
  group->last_look_ns = now;
  for (int rank = 0; rank < group->world_size; ++rank) {
    const auto bit = static_cast<uint8_t>(1u << rank);
    if ((unmarked & bit) == 0) continue;
    const ProcessIdentity owner = group->arrivals.Owner(rank);
    // Without an owner it has never had the group, and started nothing of it.
    if (owner.pid == 0 || owner.Gone()) {
      group->gone_mask |= bit;
      unmarked &= static_cast<uint8_t>(~bit);
    } else if (group->in_flight > 0 && now - group->broken_ns >= kPeerPatienceNs &&
               (group->silent_mask & bit) == 0) {
      group->silent_mask |= bit;
      listener_->OnPeerSilent(*group, rank);
    }
  }
  return unmarked == 0;
}

void LaunchQueue::ServeLanesOfBroken(Group* group, uint64_t now) {
  if (group->in_flight == 0 ? group->lanes_released : now - group->last_release_ns <= kReleaseEveryNs) return;
  // Idle lanes too: a peer may run a launch whose START this rank has not read, and an abort here may end its
  // collective.
  if (!group->lanes_released && !(LetParkedGo(group, now) && PeersMarked(group, now, 2))) return;
  group->lanes_released = true;
  ReleaseLanes(group, now);
}

void LaunchQueue::ReleaseLanes(Group* group, uint64_t now) {
  group->last_release_ns = now;
  // Such words may lie in device memory: the backend writes them, past the lanes that wait.
  Status released;
  if (group->abort_word != nullptr) released = backend_->StoreWord(group->abort_word, 1);
  // The group's words are never used again (a new generation has new ones), but a peer that has not yet heard
  // of the break may write ordinary values over these: hence again and again, until the lanes are through.
  Word* words = group->signals[static_cast<size_t>(group->rank)];
  if (released.ok() && words != nullptr && group->in_flight > 0) {
    released = backend_->FillWords(words, kReleaseValue,
                                   static_cast<size_t>(group->world_size) * plan::kSignalsPerWriter);
  }
  if (group->communicator) group->communicator->Abort();
  // Lanes that cannot be released hold this process for good.
  if (!released.ok() && fatal_.ok()) fatal_ = released.WithContext("releasing lanes of a broken group");
}

bool LaunchQueue::ServeBroken(uint64_t now) {
  bool any = false;
  for (auto& [id, group] : groups_) {
    if (!group->broken.has_value() && group->log_break_ns == 0) continue;
    if (now == 0) now = NowNs();
    if (!group->broken.has_value() && now - group->log_break_ns > kBreakGraceNs) {
      Break(group.get(),
            MakeFailure("GROUP_BROKEN", Unavailable("a rank or an engine of the group has failed"), -1));
      any = true;
      now = NowNs();  // what it has noted is later
      continue;
    }
    if (group->broken.has_value()) ServeLanesOfBroken(group.get(), now);
  }
  return any;
}

}  // namespace tandem::engine
