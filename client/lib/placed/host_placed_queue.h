// File: host_placed_queue.h
//
// `HostPlacedQueue`: client-placed launches of the host backend. A launch is one function on the thread of
// the caller's stream.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "client/lib/placed/placed_queue.h"
#include "tandem/host_stream.h"

namespace tandem::client {

class PlacedGroup;

class HostPlacedQueue final : public PlacedQueue {
 public:
  // `group` owns the queue.
  explicit HostPlacedQueue(PlacedGroup& group) : group_(group) {}

  Result<std::shared_ptr<PlacedWork>> Prepare(const plan::RankProgram& program,
                                              std::vector<engine::SlotLimit> slots,
                                              const PlacedMemory& memory) override;
  Status Launch(LaunchStream& stream, PlacedWork& work, PlacedCall call) override;
  Status Failed() const override;
  uint64_t NextLaunch() const override;
  Result<uint64_t> Stop(std::chrono::steady_clock::time_point deadline) override;
  Status Restart(uint64_t number) override;

 private:
  PlacedGroup& group_;
  // Held while a launch is put on its stream, so that all launches of the group lie behind one another.
  std::mutex order_mutex_;
  HostEvent order_;  // recorded behind each launch, and waited for before the next
};

}  // namespace tandem::client
