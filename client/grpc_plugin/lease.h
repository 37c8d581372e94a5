// File: lease.h
//
// The lease socket: attaching, sending descriptors, and the thread that files the descriptors that come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/control_api.h"
#include "common/unique_fd.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::client {

// Thread-safe after Attach.
class Lease {
 public:
  Lease() = default;
  ~Lease();

  // Connects to `path` and attaches. UNAVAILABLE if no answer comes by `deadline`.
  Result<v1::AttachReply> Attach(const std::string& path, const std::string& name, Milliseconds deadline);
  // Starts the reader. `on_lost` is called once, from it, at the end of file.
  void Start(std::function<void(const Status&)> on_lost);
  // Sends `fds` as a transfer, in parts; they stay the caller's. Returns the transfer's id.
  Result<uint64_t> Send(const std::vector<int>& fds);
  // Waits for all descriptors of a transfer.
  Result<std::vector<UniqueFd>> Take(uint64_t transfer_id, std::chrono::steady_clock::time_point deadline);
  // Ends the reader; no callback comes after it.
  void Stop();
  int fd() const { return socket_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct FdBatch {
    std::vector<UniqueFd> fds;
    size_t received = 0;
    Clock::time_point since;
  };
  void Read();
  Status File(const v1::FdTransfer& part, std::vector<UniqueFd> fds);

  UniqueFd socket_;
  std::string path_;
  std::thread reader_;
  std::function<void(const Status&)> on_lost_;
  std::mutex send_mutex_;
  uint64_t next_transfer_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, FdBatch> transfers_;
  Status lost_;
  bool stopping_ = false;
};

}  // namespace tandem::client
