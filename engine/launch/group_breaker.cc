#include "engine/launch/group_breaker.h"

#include "common/process_identity.h"
#include "ipc/channel_layout.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kReleaseEveryNs = 200'000;
// How long a BREAK in the log waits for the command that gives the reason.
constexpr uint64_t kBreakGraceNs = 200'000'000;
// How often a peer that has not marked its launches is looked for among the living: that takes system calls.
constexpr uint64_t kLookForPeersEveryNs = 5'000'000;
// A peer's engine that lives and has not marked its launches by then does not go through its loop.
constexpr uint64_t kPeerWaitBudgetNs = 1'000'000'000;

}  // namespace

void GroupBreaker::NoteAnnounced(EngineGroup* group, uint64_t now_ns) {
  GroupBreak& breaking = group->breaking;
  if (breaking.state != BreakState::kWhole) return;
  breaking.state = BreakState::kAnnounced;
  breaking.announced_ns = now_ns;
}

void GroupBreaker::Announce(EngineGroup* group) {
  if (group->breaking.appended) return;
  group->breaking.appended = true;
  log_->Append({.kind = LogKind::kBreak,
                .mask = 0,
                .plan = static_cast<uint32_t>(group->id) & kLogIdMask,
                .count = static_cast<uint16_t>(group->generation)});
}

void GroupBreaker::Mark(EngineGroup* group, uint64_t now_ns) {
  group->breaking.state = BreakState::kMarked;
  group->breaking.marked_ns = now_ns;
  group->arrivals.SetBroken(group->rank);
}

bool GroupBreaker::GraceIsOver(const EngineGroup& group, uint64_t now_ns) {
  return group.breaking.state == BreakState::kAnnounced &&
         now_ns - group.breaking.announced_ns > kBreakGraceNs;
}

bool GroupBreaker::PeersMarked(EngineGroup* group, uint64_t now_ns) {
  GroupBreak& breaking = group->breaking;
  uint8_t unmarked = 0;
  for (int rank = 0; rank < group->world_size; ++rank) {
    if (rank != group->rank && !group->arrivals.Broken(rank)) unmarked |= static_cast<uint8_t>(1u << rank);
  }
  unmarked &= static_cast<uint8_t>(~breaking.gone_mask);
  if (unmarked == 0) return true;
  if (now_ns - breaking.last_look_ns < kLookForPeersEveryNs) return false;
  breaking.last_look_ns = now_ns;
  for (int rank = 0; rank < group->world_size; ++rank) {
    const auto bit = static_cast<uint8_t>(1u << rank);
    if ((unmarked & bit) == 0) continue;
    const ProcessIdentity owner = group->arrivals.Owner(rank);
    // Without an owner it has never had the group, and started nothing of the group's.
    if (owner.pid == 0 || owner.Gone()) {
      breaking.gone_mask |= bit;
      unmarked &= static_cast<uint8_t>(~bit);
    } else if (group->in_flight > 0 && now_ns - breaking.marked_ns >= kPeerWaitBudgetNs &&
               (breaking.silent_mask & bit) == 0) {
      breaking.silent_mask |= bit;
      listener_->OnPeerSilent(*group, rank);
    }
  }
  return unmarked == 0;
}

Status GroupBreaker::Serve(EngineGroup* group, uint64_t now_ns) {
  GroupBreak& breaking = group->breaking;
  if (breaking.state == BreakState::kReleased && group->in_flight == 0) return Status::Ok();
  if (group->in_flight > 0 && now_ns - breaking.last_release_ns <= kReleaseEveryNs) return Status::Ok();
  if (breaking.state == BreakState::kMarked) {
    // Idle lanes too: a peer may run a launch whose START this rank has not read, and an abort here may end
    // its collective.
    if (!PeersMarked(group, now_ns)) return Status::Ok();
    breaking.state = BreakState::kReleased;
  }
  return ReleaseLanes(group, now_ns).WithContext("releasing lanes of a broken group");
}

Status GroupBreaker::ReleaseLanes(EngineGroup* group, uint64_t now_ns) {
  group->breaking.last_release_ns = now_ns;
  // Such words may lie in device memory: the backend writes them, past the lanes that wait.
  Status released;
  if (group->abort_word != nullptr) released = backend_->StoreWord(group->abort_word, 1);
  // The group's words are never used again: a new generation has new ones. But a peer that does not know of
  // the break yet may write ordinary values over these. Hence again and again, until the lanes are through.
  Word* words = group->signals[static_cast<size_t>(group->rank)];
  if (released.ok() && words != nullptr && group->in_flight > 0) {
    released = backend_->FillWords(words, kReleaseValue,
                                   static_cast<size_t>(group->world_size) * plan::kSignalsPerWriter);
  }
  if (group->communicator) group->communicator->Abort();
  return released;
}

}  // namespace tandem::engine
