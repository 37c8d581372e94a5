// File: lease.h
//
// The lease socket: attaching, sending descriptors, and the thread that files the descriptors that come.
// Where the daemon says so, the session outlives it: the thread goes back to the next daemon, with the
// session's token (docs/restart.md). The socket keeps its number.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/base/control_api.h"
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
  // Starts the reader, which calls `on_lost` once, at the end of file. A session that waits for daemons calls
  // it once none has started in time, or once the next daemon does not know the session.
  Status Start(std::function<void(const Status&)> on_lost);
  // Sends `fds` as a transfer, in parts; they stay the caller's. Returns the transfer's id.
  Result<uint64_t> Send(const std::vector<int>& fds);
  // Waits for all descriptors of a transfer, of daemon number `daemon`. UNAVAILABLE, reason RESTARTING, once
  // that one has ended.
  Result<std::vector<UniqueFd>> Take(uint64_t transfer_id, uint64_t daemon,
                                     std::chrono::steady_clock::time_point deadline);

  // Whether the session outlives its daemon.
  bool WaitsForDaemons() const { return grace_.count() > 0; }
  // How long it waits for each of the next ones.
  Milliseconds grace() const { return grace_; }
  // Waits until the session is attached, or lost, or `deadline`. Returns the daemon's number: the session
  // counts its daemons from 0.
  uint64_t AwaitAttached(std::chrono::steady_clock::time_point deadline);
  // After a call that has failed as if its daemon had gone: waits for the next one. False if there is none,
  // or the lease of daemon number `daemon` has not ended. `announced`: that daemon itself
  // has announced its end, however long it takes.
  bool AwaitNext(uint64_t daemon, std::chrono::steady_clock::time_point deadline, bool announced = false);
  // Before a checkpoint: calls wait from here on, as for a daemon that restarts. Resume takes it back.
  void Pause();
  void Resume();
  bool paused();
  // The session's token, as bytes.
  std::string token();
  // Leaves the session to a process that shows `secret`, and closes the socket, whose number stays taken. UNAVAILABLE: the
  // daemon has ended before it has taken note. After Pause.
  Status LetGo(const std::string& secret, std::chrono::steady_clock::time_point deadline);
  // Takes the session back with `secret`, in this process or in a restored one. `on_attached` gets the answer before
  // calls go on. An error changes nothing. UNAVAILABLE, reason NO_DAEMON. Else why the daemon refuses it.
  Status Restore(const std::string& secret, std::chrono::steady_clock::time_point deadline,
                 const std::function<void(const v1::AttachReply&)>& on_attached);
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
  // Files what comes, up to the lease's end: why it ended.
  Status ReadToEnd();
  // The session waits for a restored process: returns once this is it. UNAVAILABLE: the reader ends.
  Status AwaitRestored();
  // Goes back to the next daemon. OK once the session goes on there.
  Status Reattach();
  Result<UniqueFd> TryReattach(Clock::time_point end);
  // Sends `message`, and takes the answer. NO_DAEMON if there is none by `end`.
  Result<v1::AttachReply> Ask(int socket, const std::string& message, Clock::time_point end) const;
  Result<v1::AttachReply> AwaitReply(int socket, Clock::time_point end) const;
  Status File(const v1::FdTransfer& part, std::vector<UniqueFd> fds);

  UniqueFd socket_;
  std::string path_;
  std::string token_;  // these three are set by Attach
  uint64_t session_id_ = 0;
  Milliseconds grace_{0};
  std::thread reader_;
  std::function<void(const Status&)> on_lost_;
  std::mutex send_mutex_;
  uint64_t next_transfer_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, FdBatch> transfers_;
  Status lost_;
  bool attached_ = true;
  bool paused_ = false;
  bool let_go_ = false;  // the daemon has taken note of it
  uint64_t daemon_ = 0;
  bool stopping_ = false;
};

}  // namespace tandem::client
