// File: host_client_queue.h
//
// `HostClientQueue`: client-placed launches of the host backend. A launch is one function on the thread of
// the caller's stream.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "client/lib/client_launch/client_queue.h"
#include "tandem/host_stream.h"

namespace tandem::client {

class ClientGroup;

class HostClientQueue final : public ClientQueue {
 public:
  // `group` owns the queue.
  explicit HostClientQueue(ClientGroup& group) : group_(group) {}

  Result<std::shared_ptr<ClientWork>> Prepare(const plan::RankProgram& program,
                                              std::vector<runtime::SlotLimit> slots,
                                              const ClientLaunchMemory& memory, Trials trials) override;
  Status Launch(LaunchStream& stream, ClientWork& work, ClientCall call) override;
  Status Failed() const override;
  Result<uint64_t> Stop(std::chrono::steady_clock::time_point deadline) override;
  Status Restart(uint64_t number) override;

 private:
  ClientGroup& group_;
  // Held while a launch is put on its stream, so that all launches of the group lie behind one another.
  std::mutex order_mutex_;
  HostEvent order_;  // recorded behind each launch, and waited for before the next
};

}  // namespace tandem::client
