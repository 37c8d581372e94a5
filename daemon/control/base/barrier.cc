#include "daemon/control/base/barrier.h"

#include <algorithm>
#include <utility>

#include "daemon/control/base/blame.h"

namespace tandem::daemon {

Barrier::Barrier(size_t world, std::string what, std::string verb, WhileWorking while_working)
    : what_(std::move(what)), verb_(std::move(verb)), while_working_(while_working), slots_(world) {}

void Barrier::Take(size_t rank, Waiter::Clock::time_point deadline) {
  Slot& slot = slots_[rank];
  if (!slot.taken) slot.since = Waiter::Clock::now();
  slot.taken = true;
  slot.acknowledged = slot.withdrew = false;
  slot.deadline = deadline;
}

bool Barrier::Complete() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.taken; });
}

bool Barrier::Empty() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.taken; });
}

bool Barrier::AllAcknowledged() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.acknowledged; });
}

std::vector<uint32_t> Barrier::Missing() const {
  std::vector<uint32_t> missing;
  for (size_t rank = 0; rank < slots_.size(); ++rank) {
    if (!slots_[rank].taken) missing.push_back(static_cast<uint32_t>(rank));
  }
  return missing;
}

Waiter::Clock::time_point Barrier::FirstDeadline() const {
  auto first = Waiter::Clock::time_point::max();
  for (const Slot& slot : slots_) {
    if (slot.taken) first = std::min(first, slot.deadline);
  }
  return first;
}

void Barrier::End(const Status& verdict) {
  if (phase_ == Phase::kOver) return;
  phase_ = Phase::kOver;
  verdict_ = verdict;
  changed_.notify_all();
}

void Barrier::EndGathering(const Status& verdict) {
  if (phase_ == Phase::kGathering) End(verdict);
}

Status Barrier::LateStatus(size_t rank) const {
  const std::vector<uint32_t> missing = Missing();
  std::vector<uint32_t> cancelled;
  for (const uint32_t peer : missing) {
    if (slots_[peer].withdrew) cancelled.push_back(peer);
  }
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Waiter::Clock::now() - slots_[rank].since);
  std::string text = what_ + ": " + RankList(missing) + " did not " + verb_ + " within " + Seconds(waited);
  if (!cancelled.empty()) text += " (" + RankList(cancelled) + " came, and cancelled the call)";
  return Status(Code::kDeadlineExceeded, text, BlameRanks("RANK_LATE", missing));
}

bool Barrier::AwaitEnd(RegistryLock& lock, size_t rank, const Waiter& waiter) {
  slots_[rank].waiting.push_back(&waiter);
  const bool done = waiter.Wait(lock, changed_,
                                [this]() TANDEM_REQUIRES(registry_mutex) { return phase_ == Phase::kOver; });
  std::erase(slots_[rank].waiting, &waiter);
  return done;
}

Status Barrier::Await(RegistryLock& lock, size_t rank, const Waiter& waiter) {
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
    if (phase_ == Phase::kGathering && slots_[rank].waiting.empty()) Withdraw(slots_[rank]);
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

void Barrier::Withdraw(Slot& slot) {
  slot.taken = false;
  slot.withdrew = true;
}

void Barrier::DropCancelled() {
  if (phase_ != Phase::kGathering) return;
  for (Slot& slot : slots_) {
    const bool cancelled = std::all_of(slot.waiting.begin(), slot.waiting.end(),
                                       [](const Waiter* call) { return call->Cancelled(); });
    if (slot.taken && !slot.waiting.empty() && cancelled) Withdraw(slot);
  }
}

}  // namespace tandem::daemon
