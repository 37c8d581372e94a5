// File: client_group.h
//
// `ClientGroup`: one rank's side of a group's client-placed launches (docs/client-placement.md). It has the
// verdict page, the failure that stalls the group, and the queue that runs the launches. On the host backend
// it also has the launch counter, which all plans of the group share.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "client/lib/base/control_api.h"
#include "client/lib/client_launch/client_program.h"
#include "client/lib/client_launch/client_queue.h"
#include "ipc/verdict_page.h"
#include "tandem/status.h"

namespace tandem::client {

// How long a launch that has failed by itself waits for tandemd's verdict, which names the cause.
inline constexpr std::chrono::milliseconds kVerdictPatience{500};

// Thread-safe. Launches run one at a time.
class ClientGroup {
 public:
  // `report`: called with the first failure that this rank has found by itself, and with the first after each
  // renewal; from any thread; must not block.
  ClientGroup(uint64_t group_id, int rank, VerdictPage page, std::function<void(FailureReport)> report)
      : group_id_(group_id), rank_(rank), page_(std::move(page)), report_(std::move(report)) {}

  // Once, before the first launch.
  void SetQueue(std::unique_ptr<ClientQueue> queue) { queue_ = std::move(queue); }
  ClientQueue& queue() const { return *queue_; }
  int rank() const { return rank_; }
  VerdictPage& page() { return page_; }

  // Why no launch can be made any more; OK while they can. Of launches on the host.
  Status Failed() const;
  // The failure that has been kept; OK while there is none.
  Status Kept() const;
  // Keeps the first failure; true for it.
  bool Keep(const Status& why);
  // Tells tandemd of a launch that has failed here.
  void Report(uint64_t launch, uint64_t plan_id, const Status& why);

  // Runs the group's next launch, on the thread of a stream. OK: all data is right, and the counter has
  // grown. An error stalls the group: until a renewal, launches return it and touch nothing.
  Status Run(ClientProgram& program, uint64_t plan_id, uint16_t tag, std::chrono::nanoseconds deadline,
             std::span<const runtime::SlotAddress> slots);
  // A launch that this rank's library has refused: the peers would pair their launches wrongly from then on.
  // Stalls the group.
  void Refuse(uint64_t plan_id, const Status& why);
  // All ranks have renewed the group, `renewals` times by now: launches go on. None is under way.
  void Renew(uint64_t renewals);
  // Nobody writes verdicts any more: ends all launches, for `why`.
  void CutOff(const Status& why);

  // Tells operators that a launch has been under way since now, or that none is.
  // `plan_id`: its plan, 0 where it is not known.
  void ShowWaiting(bool is_under_way, uint64_t plan_id = 0);

  // Launches that have ended well.
  uint64_t finished() const { return counter_.load(std::memory_order_acquire); }
  // Graphs may launch plans of the group.
  void NoteCaptured() { in_graphs_.store(true, std::memory_order_relaxed); }
  bool in_graphs() const { return in_graphs_.load(std::memory_order_relaxed); }
  // On the host, for a renewal: the next launch is `number` + 1.
  void SetFinished(uint64_t number) { counter_.store(number, std::memory_order_release); }

 private:
  const uint64_t group_id_;
  const int rank_;
  VerdictPage page_;
  const std::function<void(FailureReport)> report_;
  std::mutex run_mutex_;
  std::atomic<uint64_t> counter_{0};
  std::atomic<bool> in_graphs_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<uint64_t> renewals_{0};
  mutable std::mutex failure_mutex_;  // also of writes of the page
  Status failure_;
  std::unique_ptr<ClientQueue> queue_;  // last: it uses everything above
};

}  // namespace tandem::client
