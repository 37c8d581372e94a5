// File: placed_group.h
//
// `PlacedGroup`: one rank's side of a group's client-placed launches (docs/client-placement.md). It has the
// launch counter, which all plans of the group share, the verdict page, and the failure that ends the group.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>

#include "client/lib/control_api.h"
#include "client/lib/placed/placed_program.h"
#include "ipc/verdict_page.h"
#include "tandem/host_stream.h"
#include "tandem/status.h"

namespace tandem::client {

// Thread-safe. Launches run one at a time.
class PlacedGroup {
 public:
  // `report`: called once, with the first failure that this rank has found by itself, from any thread; must
  // not block.
  PlacedGroup(uint64_t group_id, int rank, VerdictPage page, std::function<void(FailureReport)> report)
      : group_id_(group_id), rank_(rank), page_(std::move(page)), report_(std::move(report)) {}

  // Why no launch can be made any more; OK while they can.
  Status Failed() const;

  // Runs the group's next launch, on the thread of a stream. OK: all data is right, and the counter has
  // grown. An error ends the group: later launches return it and touch nothing.
  Status Run(PlacedProgram& program, uint64_t plan_id, uint16_t tag, std::chrono::nanoseconds deadline,
             std::span<const engine::SlotAddress> slots);
  // A launch that this rank's library has refused: the peers would pair their launches wrongly from then on.
  // Ends the group.
  void Refuse(uint64_t plan_id, const Status& why);
  // Nobody writes verdicts any more: ends all launches, for `why`.
  void CutOff(const Status& why);

  // Launches that have ended well.
  uint64_t finished() const { return counter_.load(std::memory_order_acquire); }

  // Held while a launch is put on its stream, so that all launches of the group lie behind one another.
  std::mutex& order_mutex() { return order_mutex_; }
  // Recorded behind each launch, and waited for before the next.
  HostEvent& order() { return order_; }

 private:
  // Keeps the first failure; true for it.
  bool Keep(const Status& why);
  void Report(uint64_t launch, uint64_t plan_id, const Status& why);

  const uint64_t group_id_;
  const int rank_;
  VerdictPage page_;
  const std::function<void(FailureReport)> report_;
  std::mutex run_mutex_;
  std::atomic<uint64_t> counter_{0};
  std::atomic<bool> has_failed_{false};
  mutable std::mutex failure_mutex_;  // also of writes of the page
  Status failure_;
  std::mutex order_mutex_;
  HostEvent order_;
};

}  // namespace tandem::client
