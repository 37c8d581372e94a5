// File: session_record.h
//
// The record of a session: one client process's lease, and everything that the process has.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/mps_endpoint.h"
#include "common/protocol.h"
#include "daemon/control/base/lease_port.h"
#include "daemon/control/base/ledger.h"
#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/base/transfer_table.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/records/channel_records.h"
#include "daemon/control/records/memory_records.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

struct PendingSuspension;

// A session's last checkpoint (CheckpointService).
struct Checkpoint {
  std::string secret = {};  // for the next restoration; empty: there was no checkpoint
  // Since when the session waits for a restored process; none: its process has it.
  std::optional<Waiter::Clock::time_point> since = {};
  std::string token = {};  // the session's before it was restored; empty: it was not
};

struct SessionRecord {
  explicit SessionRecord(size_t max_transfers) : transfers(max_transfers) {}

  // Set before other threads see the record. A restoration changes token, process and GPUs while no call is served.
  uint64_t id = 0;
  std::array<uint8_t, kTokenBytes> token{};
  uint32_t protocol = kProtocol;  // that both sides speak
  PeerIdentity peer;
  std::string owner;                  // OwnerOf(peer.cgroup): the job that quotas of cgroups are kept by
  std::optional<std::set<int>> gpus;  // that the process may use; none: all
  std::string name, command;
  MpsEndpoint mps;  // the MPS daemon that the process's CUDA driver meets, by the client's account
  uint32_t device_max_connections = 0;  // CUDA_DEVICE_MAX_CONNECTIONS by the client's account; 0: not set
  Waiter::Clock::time_point since = Waiter::Clock::now();

  TransferTable transfers;  // has its own mutex

  Checkpoint checkpoint TANDEM_GUARDED_BY(registry_mutex);
  // Taken over from an earlier tandemd, and its lease has not come back yet.
  bool away TANDEM_GUARDED_BY(registry_mutex) = false;
  bool ended TANDEM_GUARDED_BY(registry_mutex) = false;
  Status end TANDEM_GUARDED_BY(registry_mutex);  // once it has ended: the status of later calls
  std::deque<v1::Event> events TANDEM_GUARDED_BY(registry_mutex);
  uint64_t events_dropped TANDEM_GUARDED_BY(registry_mutex) = 0;  // and not in the log yet
  std::condition_variable events_changed;
  uint64_t calls TANDEM_GUARDED_BY(registry_mutex) = 0;  // under way; those beyond kOwnCalls are charged
  uint64_t event_streams TANDEM_GUARDED_BY(registry_mutex) = 0;  // opened; the last one is served
  std::map<uint64_t, std::shared_ptr<TensorRecord>> tensors TANDEM_GUARDED_BY(registry_mutex);
  std::map<std::string, uint64_t> named_tensors TANDEM_GUARDED_BY(registry_mutex);  // "<gpu>/<name>"
  std::map<uint64_t, RegistrationRecord> registrations TANDEM_GUARDED_BY(registry_mutex);
  std::map<uint64_t, ChannelRecord> channels TANDEM_GUARDED_BY(registry_mutex);
  std::map<uint64_t, LaunchRecord> launches TANDEM_GUARDED_BY(registry_mutex);
  std::condition_variable launches_changed;
  std::set<uint64_t> groups TANDEM_GUARDED_BY(registry_mutex);
  bool suspends TANDEM_GUARDED_BY(registry_mutex) = false;  // it takes operators' requests to suspend
  // The request that it has got; null: none.
  std::shared_ptr<PendingSuspension> suspension TANDEM_GUARDED_BY(registry_mutex);
  std::set<int> used_engines TANDEM_GUARDED_BY(registry_mutex);  // GPUs whose engines it may need

  Payer payer() const { return {peer.uid, owner, peer.gid, peer.cgroup}; }
  // Queues an event; beyond `most` the oldest goes, and is counted.
  void PostEvent(v1::Event event, uint64_t most) TANDEM_REQUIRES(registry_mutex);
};
using SessionRef = std::shared_ptr<SessionRecord>;

inline constexpr size_t kCheckpointSecretBytes = 32;

inline void SessionRecord::PostEvent(v1::Event event, uint64_t most) {
  if (events.size() >= most) {
    events.pop_front();
    ++events_dropped;
  }
  events.push_back(std::move(event));
  events_changed.notify_all();
}

}  // namespace tandem::daemon
