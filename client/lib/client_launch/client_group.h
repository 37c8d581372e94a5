// File: client_group.h
//
// `ClientGroup`: one rank's side of a group's client-placed launches (docs/client-placement.md). It has the
// verdict page, the state of the launches, and the queue that runs them. On the host backend it also has the
// launch counter, which all plans of the group share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "client/lib/base/control_api.h"
#include "client/lib/base/usage_ledger.h"
#include "client/lib/client_launch/client_program.h"
#include "client/lib/client_launch/client_queue.h"
#include "client/lib/client_launch/launched_plan.h"
#include "ipc/verdict_page.h"
#include "runtime/client_launch_state.h"
#include "tandem/status.h"

namespace tandem::client {

// How long a launch that has failed by itself waits for tandemd's verdict, which names the cause.
inline constexpr std::chrono::milliseconds kVerdictWaitBudget{500};

// Thread-safe. Launches run one at a time.
class ClientGroup {
 public:
  // `report`: called with the first failure that this rank has found by itself, and with the first after each
  // renewal; from any thread; must not block.
  ClientGroup(uint64_t group_id, int rank, VerdictPage page, std::function<void(FailureReport)> report)
      : group_id_(group_id), rank_(rank), page_(std::move(page)), report_(std::move(report)) {}

  // Counts the verdict page for as long as the group has it. Once.
  void CountPage(UsageLedger& ledger) {
    counted_ = ledger.Hold(MemoryKind::kHost, group_id_, page_.layout(), kVerdictPageBytes);
  }
  // Once, before the first launch.
  void SetQueue(std::unique_ptr<ClientQueue> queue) { queue_ = std::move(queue); }
  ClientQueue& queue() const { return *queue_; }
  uint64_t id() const { return group_id_; }
  int rank() const { return rank_; }
  VerdictPage& page() { return page_; }

  runtime::ClientLaunchState state() const { return lifecycle_.state(); }
  // A launch has failed, and its cause is not known yet: whoever waits polls again.
  bool AwaitsVerdict() const { return lifecycle_.AwaitsVerdict(); }
  // The failure that launches under way end with; OK while they do not fail. `Failures`: how many there were.
  Status Failure() const { return lifecycle_.failure(); }
  uint64_t Failures() const { return lifecycle_.failures(); }
  // Why this rank makes no launch: the failure, or a renewal that has not ended. OK while launches are made,
  // as far as no verdict page ends them.
  Status Refusal() const;

  // Runs the group's next launch, on the thread of a stream. OK: all data is right, and the counter has
  // grown. An error stalls the group: until a renewal, launches return it and touch nothing.
  Status Run(ClientProgram& program, const LaunchedPlan& plan, uint16_t tag,
             std::chrono::nanoseconds deadline, std::span<const runtime::SlotAddress> slots);
  // Takes note of launch number `launch`, which has given up for `why`. The first call reports it. Returns
  // the failure that launches under way end with. Nothing while the verdict may still come: call again.
  std::optional<Status> Judge(uint64_t launch, const LaunchedPlan& plan, const Status& why);
  // A launch that this rank's library has refused: the peers would pair their launches wrongly from then on.
  // Stalls the group.
  void Refuse(const LaunchedPlan& plan, const Status& why);

  // This rank has stopped its launches: it makes none before the renewal ends. False while a failure awaits
  // its verdict.
  bool BeginRenewal() { return lifecycle_.Apply(runtime::ClientLaunchEvent::kRenewalBegun); }
  // All ranks have renewed the group, `renewals` times by now: launches go on. None is under way.
  void EndRenewal(uint64_t renewals);
  // A renewal that has begun has not ended on all ranks: the group stalls until the next one.
  void FailRenewal();
  // This rank has stopped its launches, to suspend the group: it makes none before it has resumed it, which ends as a
  // renewal. False while a failure awaits its verdict.
  bool BeginSuspension();
  // The suspension did not begin on all ranks: launches go on.
  void CancelSuspension();
  // Nobody writes verdicts any more: ends all launches, for `why`.
  void CutOff(const Status& why);
  // The GPU's context is gone, and all launches with it.
  void LoseContext(const Status& why) {
    (void)lifecycle_.Apply(runtime::ClientLaunchEvent::kContextLost, why);
  }

  // Tells operators that a launch has been under way since now, or that none is.
  // `plan_id`: its plan, 0 where it is not known.
  void ShowWaiting(bool is_under_way, uint64_t plan_id = 0);

  // Launches that have ended well, on the host backend.
  uint64_t finished() const { return counter_.load(std::memory_order_acquire); }
  // A launch is on its stream, behind all earlier ones. By the queue, in the order of the launches.
  void NoteLaunched(uint64_t plan_id);
  // Graphs may launch plans of the group from now on. Nobody counts their launches.
  void NoteCaptured();
  // The number of the next launch that is put on a stream; 0: not known, because graphs may launch.
  uint64_t NextLaunch() const;
  // For a renewal, while none is under way: the next launch is `number` + 1.
  void Restart(uint64_t number);

 private:
  // Posts the report of a launch that has failed here.
  void Report(uint64_t launch, const LaunchedPlan& plan, const Status& why);
  Status Renewing() const;

  const uint64_t group_id_;
  const int rank_;
  VerdictPage page_;
  UsageLedger::Entry counted_;
  const std::function<void(FailureReport)> report_;
  std::mutex run_mutex_;
  std::atomic<uint64_t> counter_{0};
  std::atomic<uint64_t> launched_{0};  // on streams; of graphs none is counted
  std::atomic<bool> in_graphs_{false};
  std::atomic<uint64_t> renewals_{0};
  std::atomic<bool> suspended_{false};
  runtime::ClientLaunchLifecycle lifecycle_;
  std::mutex verdict_mutex_;  // of Judge, and of writes of the page's verdict
  std::chrono::steady_clock::time_point reported_at_;
  std::unique_ptr<ClientQueue> queue_;  // last: it uses everything above
};

}  // namespace tandem::client
