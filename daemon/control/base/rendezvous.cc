#include "daemon/control/base/rendezvous.h"

#include <algorithm>
#include <utility>

#include "daemon/control/base/blame.h"

namespace tandem::daemon {

Rendezvous::Rendezvous(size_t world, std::string what, std::string verb, WhileWorking while_working)
    : what_(std::move(what)), verb_(std::move(verb)), while_working_(while_working), slots_(world) {}

void Rendezvous::Take(size_t rank, Waiter::Clock::time_point deadline) {
  Slot& slot = slots_[rank];
  if (!slot.taken) slot.since = Waiter::Clock::now();
  slot.taken = true;
  slot.acknowledged = slot.gave_up = false;
  slot.deadline = deadline;
}

bool Rendezvous::Complete() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.taken; });
}

bool Rendezvous::Empty() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.taken; });
}

bool Rendezvous::AllAcknowledged() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.acknowledged; });
}

std::vector<uint32_t> Rendezvous::Missing() const {
  std::vector<uint32_t> missing;
  for (size_t rank = 0; rank < slots_.size(); ++rank) {
    if (!slots_[rank].taken) missing.push_back(static_cast<uint32_t>(rank));
  }
  return missing;
}

Waiter::Clock::time_point Rendezvous::FirstDeadline() const {
  auto first = Waiter::Clock::time_point::max();
  for (const Slot& slot : slots_) {
    if (slot.taken) first = std::min(first, slot.deadline);
  }
  return first;
}

void Rendezvous::End(const Status& verdict) {
  if (phase_ == Phase::kOver) return;
  phase_ = Phase::kOver;
  verdict_ = verdict;
  changed_.notify_all();
}

void Rendezvous::EndGathering(const Status& verdict) {
  if (phase_ == Phase::kGathering) End(verdict);
}

Status Rendezvous::LateStatus(size_t rank) const {
  const std::vector<uint32_t> missing = Missing();
  std::vector<uint32_t> cancelled;
  for (const uint32_t peer : missing) {
    if (slots_[peer].gave_up) cancelled.push_back(peer);
  }
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Waiter::Clock::now() - slots_[rank].since);
  std::string text = what_ + ": " + RankList(missing) + " did not " + verb_ + " within " + Seconds(waited);
  if (!cancelled.empty()) text += " (" + RankList(cancelled) + " came, and cancelled the call)";
  return Status(Code::kDeadlineExceeded, text, BlameRanks("RANK_LATE", missing));
}

bool Rendezvous::AwaitEnd(RegistryLock& lock, size_t rank, const Waiter& waiter) {
  slots_[rank].waiting.push_back(&waiter);
  const bool done = waiter.Wait(lock, changed_,
                                [this]() TANDEM_REQUIRES(registry_mutex) { return phase_ == Phase::kOver; });
  std::erase(slots_[rank].waiting, &waiter);
  return done;
}

Status Rendezvous::Await(RegistryLock& lock, size_t rank, const Waiter& waiter) {
  const auto is_over = [this]() TANDEM_REQUIRES(registry_mutex) { return phase_ == Phase::kOver; };
  slots_[rank].waiting.push_back(&waiter);
  bool done = waiter.Wait(lock, changed_, is_over);
  if (!done && phase_ == Phase::kWorking && while_working_ == WhileWorking::kAwaitsTheVerdict) {
    changed_.wait(lock.fused(), is_over);
    done = true;
  }
  std::erase(slots_[rank].waiting, &waiter);
  if (done) return Status::Ok();
  if (waiter.Cancelled()) {
    // The call is gone, not the rank: it may ask again, and the others go on waiting for it.
    if (phase_ == Phase::kGathering && slots_[rank].waiting.empty()) GiveUp(slots_[rank]);
    return Status(Code::kCancelled, "the caller went away");
  }
  if (phase_ == Phase::kWorking) {
    return Status(Code::kDeadlineExceeded,
                  what_ + ": all ranks have come, and the engines are being told; a repeated call waits on",
                  {.reason = "UNDER_WAY", .who = {}, .field = {}});
  }
  End(LateStatus(rank));
  return Status::Ok();
}

void Rendezvous::GiveUp(Slot& slot) {
  slot.taken = false;
  slot.gave_up = true;
}

void Rendezvous::DropCancelled() {
  if (phase_ != Phase::kGathering) return;
  for (Slot& slot : slots_) {
    const bool cancelled = std::all_of(slot.waiting.begin(), slot.waiting.end(),
                                       [](const Waiter* call) { return call->Cancelled(); });
    if (slot.taken && !slot.waiting.empty() && cancelled) GiveUp(slot);
  }
}

}  // namespace tandem::daemon
