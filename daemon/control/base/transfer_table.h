// File: transfer_table.h
//
// `TransferTable`: descriptors that one session has sent over its lease socket and that no call has claimed
// yet. Calls and descriptors come by two sockets without mutual order, hence claims wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>

#include "common/mutex.h"
#include "daemon/control/base/foreign_fds.h"
#include "daemon/control/base/waiter.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Descriptors of one transfer: a range of so many chunks, 20 GiB of PyTorch's. The quota bounds the total of
// a uid.
inline constexpr uint32_t kMaxTransferFds = 1024;

// Thread-safe.
class TransferTable {
 public:
  explicit TransferTable(size_t max_transfers) : max_transfers_(max_transfers) {}

  // Adds one part of a transfer. A transfer that is too long is refused: its descriptors are closed, and the
  // call that claims it fails. INVALID_ARGUMENT, and the transfer ends: parts contradict each other (totals,
  // overlaps, no descriptors). RESOURCE_EXHAUSTED: too many are open.
  Status Add(uint64_t transfer_id, uint32_t index, uint32_t total, ForeignFds fds);

  // The transfer ends with `why`, its descriptors are closed, and a call that claims it gets `why`.
  void Refuse(uint64_t transfer_id, Status why);

  // Waits for all parts and hands the descriptors over. NOT_FOUND names the transfer if it did not come.
  Result<ForeignFds> Claim(uint64_t transfer_id, const Waiter& waiter);

  // Closes what is older than `age`; true if unclaimed transfers are left.
  bool ReapOrphans(std::chrono::milliseconds age);

  // Closes everything and makes claims fail: the session has ended.
  void Close();

  // Descriptors held.
  size_t descriptors() const;

 private:
  struct Entry {
    uint32_t total = 0;
    uint32_t present = 0;
    ForeignFds fds;
    Waiter::Clock::time_point since;
    Status refused;
  };
  const size_t max_transfers_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Entry> entries_ TANDEM_GUARDED_BY(mutex_);
  bool closed_ TANDEM_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::daemon
