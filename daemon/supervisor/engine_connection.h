// File: engine_connection.h
//
// `EngineConnection`: tandemd's end of the socketpair to one engine process. Sends commands, matches Acks to
// the calls that wait for them, and files everything else into an inbox for the keeper's thread. One reader
// thread. Ends once and for all with the first end of file or malformed message; a new process gets a new
// connection.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::engine::v1 {
class Command;
class Message;
class Queue;
}  // namespace tandem::engine::v1

namespace tandem::daemon {

// The reason of a connection whose engine closed its end.
inline constexpr char kEndOfFile[] = "the engine closed its socket";

class EngineConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // `wake_fd` (an eventfd, kept by the caller, outlives this) is written when the inbox or the state has
  // changed. `name` is for messages: "engine of GPU 1 (GPU-5d8f…)".
  EngineConnection(UniqueFd socket, int wake_fd, std::string name);
  ~EngineConnection();
  EngineConnection(const EngineConnection&) = delete;
  EngineConnection& operator=(const EngineConnection&) = delete;

  // Sends and waits for the Ack; its status is the answer. Thread-safe; commands go out in the order of the
  // calls.
  Status Call(engine::v1::Command& command, const std::vector<int>& fds, std::chrono::milliseconds deadline);
  // Sends without waiting, and sets the command's id; the Ack only counts as a sign of life.
  Status Post(engine::v1::Command& command, const std::vector<int>& fds);
  // AllocateSegment and QueueSnapshot: the answer is a separate message, sent before the Ack.
  Result<UniqueFd> AllocateSegment(uint64_t segment_id, uint64_t bytes, std::chrono::milliseconds deadline);
  Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(std::chrono::milliseconds deadline);
  // A call for the payload of the Ack.
  Result<std::string> Ask(engine::v1::Command& command, std::chrono::milliseconds deadline);

  // Messages that are neither Ack, Allocated nor Queue, oldest first.
  std::deque<std::unique_ptr<engine::v1::Message>> TakeInbox();
  // OK while the connection is up; then why it ended.
  Status state() const;
  // The time of the engine's latest message; before the first message, of this object's construction.
  Clock::time_point last_heard() const;
  // The highest id of a command that the engine has answered. It reads them in order: it has read all before
  // that one.
  uint64_t last_answered() const { return last_answered_.load(std::memory_order_relaxed); }
  // Fails all calls, now and later, with UNAVAILABLE and `reason`, while Post still sends: nobody shall wait
  // for an engine that is being stopped. Thread-safe.
  void EndCalls(const std::string& reason);
  // Fails all calls, now and later, with UNAVAILABLE and `reason`; the engine sees end of file.
  void Close(const std::string& reason);
  // Waits until everything the engine sent before its end, or before Close, is in the inbox; false at the
  // deadline. Useful after either: the exit of a process is often known before its socket has been read.
  bool AwaitAllRead(std::chrono::milliseconds deadline);

 private:
  struct Pending {
    bool done = false;
    Status status;
    std::string payload;
    uint64_t segment_id = 0;
    UniqueFd segment;
  };
  Status Exchange(engine::v1::Command& command, const std::vector<int>& fds,
                  std::chrono::milliseconds deadline, Pending& pending);
  Status Send(engine::v1::Command& command, const std::vector<int>& fds, Pending* pending);
  void Read();
  Status Handle(std::unique_ptr<engine::v1::Message> message, std::vector<UniqueFd> fds);

  const UniqueFd socket_;
  const int wake_fd_;
  const std::string name_;
  std::mutex send_mutex_;   // held over id assignment and send: the order of ids is the order of packets
  std::mutex queue_mutex_;  // one QueueSnapshot at a time: its answer carries no id
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Pending*> pending_;
  std::unique_ptr<engine::v1::Queue> queue_;
  std::deque<std::unique_ptr<engine::v1::Message>> inbox_;
  Status state_;
  Status calls_ended_;  // of EndCalls
  bool all_read_ = false;
  std::atomic<Clock::rep> last_heard_;
  std::atomic<uint64_t> last_answered_{0};  // the reader's to write
  std::thread reader_;
};

}  // namespace tandem::daemon
