// File: engine_link.h
//
// The engine's end of the socketpair to tandemd. A separate thread receives commands and puts them into a
// queue, so that the main thread looks at one atomic only. Messages go out without blocking, and wait here
// when tandemd is slow.
//
// A link that awaits successors outlives tandemd: when the socket ends, the thread accepts the next tandemd
// at a listening socket, and the main thread takes it over between two commands.
//
// Thread rule: one thread calls the public functions (the engine's main thread), Stop() may come from any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/fd_socket.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::engine {

namespace v1 {
class Command;
class Message;
}  // namespace v1

struct ReceivedCommand {
  std::unique_ptr<v1::Command> command;
  std::vector<UniqueFd> fds;
  ReceivedCommand();
  ReceivedCommand(ReceivedCommand&&) noexcept;
  ReceivedCommand& operator=(ReceivedCommand&&) noexcept;
  ~ReceivedCommand();
};

class EngineLink {
 public:
  explicit EngineLink(UniqueFd socket);
  ~EngineLink();

  // The next command, if there is one. Cheap when there is none.
  bool Next(ReceivedCommand* command);
  bool HasNews() const { return news_.load(std::memory_order_seq_cst); }
  // tandemd's end is closed, or it has sent something that is no command; with AwaitSuccessors: and nobody
  // has come since, for the grace.
  bool Ended() const { return ended_.load(std::memory_order_acquire); }

  // From now on a process of this one's uid that connects to `listener` within `grace` after the socket's end
  // takes tandemd's place. Once.
  void AwaitSuccessors(UniqueFd listener, std::chrono::milliseconds grace);
  // The next tandemd has connected.
  bool HasSuccessor() const { return has_successor_.load(std::memory_order_seq_cst); }
  // Messages go to it from now on, and its commands come. Messages for the last one are dropped.
  void TakeSuccessor();
  // Counts the tandemds, from 0.
  uint64_t successions() const { return successions_; }

  // Sends, after whatever waits. `droppable` messages are dropped when too much waits.
  void Send(const v1::Message& message, const std::vector<int>& fds = {}, bool droppable = false);
  // Sends what waits; true if nothing does any more.
  bool Flush();

  // Sleeping: the word is set to 1 by PrepareSleep, and to 0 with a wake when a command comes.
  std::atomic<uint32_t>* sleep_word() { return &sleeping_; }
  void PrepareSleep() { sleeping_.store(1, std::memory_order_seq_cst); }
  void EndSleep() { sleeping_.store(0, std::memory_order_relaxed); }
  // Wakes the engine, as a command would.
  void Wake();

 private:
  void ReceiveLoop();
  // Reads commands to the end of `socket`.
  void Receive(int socket);
  // Waits for the next tandemd, and until the main thread has taken it; its socket, or -1 if nobody came.
  int AwaitSuccessor();
  Result<UniqueFd> Accept(int listener) const;

  struct Outgoing {
    std::string body;
    std::vector<UniqueFd> fds;
  };

  UniqueFd socket_;  // the main thread's; replaced while the receiver waits
  std::atomic<bool> news_{false};
  std::atomic<bool> ended_{false};
  std::atomic<uint32_t> sleeping_{0};
  std::atomic<bool> has_successor_{false};
  std::atomic<bool> closing_{false};
  uint64_t successions_ = 0;
  std::mutex mutex_;
  std::condition_variable taken_;
  std::deque<ReceivedCommand> received_;
  UniqueFd listener_;                  // guarded; invalid: successors are not awaited
  std::chrono::milliseconds grace_{};  // guarded
  UniqueFd successor_;                 // guarded
  std::deque<Outgoing> outgoing_;
  std::thread receiver_;  // last: it uses everything above
};

}  // namespace tandem::engine
