// File: verdict_page.h
//
// The verdict page of one member of a group (docs/client-placement.md): how tandemd ends client-placed
// launches. A memfd that tandemd makes, mapped by tandemd and by that member. Kernels look at
// `first_aborted_launch`.
//
// All fields are atomics: a member that overwrites its own page harms its own launches only.
#pragma once

#include <cstdint>
#include <memory>

#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "common/word.h"
#include "ipc/channel_layout.h"
#include "tandem/status.h"

namespace tandem {

// A launch further back has no plan on the page.
inline constexpr size_t kLaunchedPlans = 16;

struct VerdictPageLayout {
  // Launches from this number on give up; 0: none do. A break, a death and a stall write 1, a clean leave the
  // leaver's last number + 1. It never grows, but a renewal sets it to 0.
  alignas(64) Word first_aborted_launch;
  // Written by the member: its launches that have ended.
  alignas(64) Word finished;
  // Written by the member: since when it has a launch under way and none has ended, in nanoseconds of
  // CLOCK_MONOTONIC; 0: no launch is under way. Replays of graphs do not count.
  Word waits_since_ns;
  // Why. Written before `first_aborted_launch`.
  StatusRecord reason;
  // Written by the member: the plan of the launch that it waits in; 0: not known.
  Word waits_plan;
  // Written by the member: the last launch that it has put on a stream; 0: none, or graphs make launches that
  // nobody counts.
  alignas(64) Word launched;
  // Written before `launched`: the plans of the last launches, each at its number modulo kLaunchedPlans.
  Word launched_plans[kLaunchedPlans];
};
inline constexpr size_t kVerdictPageBytes = 4096;
static_assert(sizeof(VerdictPageLayout) <= kVerdictPageBytes);

// A mapping of a page, which copies share. Any thread may read. One thread a process writes at a time.
class VerdictPage {
 public:
  VerdictPage() = default;
  // A new page, sealed and zeroed.
  static Result<UniqueFd> Create();
  // INVALID_ARGUMENT unless `fd` is such a page. Takes nothing of `fd`.
  static Result<VerdictPage> Map(int fd);

  // Ends launches from number `from` on, for `why`. A later call that ends fewer launches changes nothing;
  // one that ends as many keeps the first reason.
  void Abort(uint64_t from, const Status& why);
  // Launches go on. No launch of the page's rank may be under way.
  void Clear() { layout()->first_aborted_launch.store(0, std::memory_order_release); }
  // 0: no launch is to end.
  uint64_t FirstAbortedLaunch() const {
    return layout()->first_aborted_launch.load(std::memory_order_acquire);
  }
  bool Aborts(uint64_t launch) const {
    const uint64_t from = FirstAbortedLaunch();
    return from != 0 && from <= launch;
  }
  // Why, once FirstAbortedLaunch() is not 0.
  Status Reason() const;

  // Never goes back: of two threads' counts the later one holds.
  void SetFinished(uint64_t launch) {
    uint64_t known = layout()->finished.load(std::memory_order_relaxed);
    while (known < launch && !layout()->finished.compare_exchange_weak(known, launch)) continue;
  }
  uint64_t Finished() const { return layout()->finished.load(std::memory_order_acquire); }
  void SetWaitsSince(uint64_t monotonic_ns) {
    layout()->waits_since_ns.store(monotonic_ns, std::memory_order_relaxed);
  }
  void SetWaitsPlan(uint64_t plan_id) { layout()->waits_plan.store(plan_id, std::memory_order_relaxed); }
  uint64_t WaitsPlan() const { return layout()->waits_plan.load(std::memory_order_relaxed); }
  uint64_t WaitsSince() const { return layout()->waits_since_ns.load(std::memory_order_relaxed); }
  // Launch `number`, of plan `plan_id`, is on a stream. 0 and 0: launches are not counted any more.
  void SetLaunched(uint64_t number, uint64_t plan_id) {
    layout()->launched_plans[number % kLaunchedPlans].store(plan_id, std::memory_order_relaxed);
    layout()->launched.store(number, std::memory_order_release);
  }
  // The last launch on a stream; 0: none, or not known.
  uint64_t Launched() const { return layout()->launched.load(std::memory_order_acquire); }
  // The plan of a launch of the last kLaunchedPlans - 1; 0: not known.
  uint64_t PlanOfLaunch(uint64_t number) const;
  VerdictPageLayout* layout() const { return mapping_->As<VerdictPageLayout>(); }

 private:
  std::shared_ptr<const Mapping> mapping_;
};

}  // namespace tandem
