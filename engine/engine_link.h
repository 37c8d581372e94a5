// File: engine_link.h
//
// The engine's end of the socketpair to tandemd. A separate thread receives commands and puts them into a
// queue, so that the main thread looks at one atomic only. Messages go out without blocking, and wait here
// when tandemd is slow.
//
// Thread rule: one thread calls the public functions (the engine's main thread), Stop() may come from any.
#pragma once

#include <atomic>
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
  // tandemd's end is closed, or it has sent something that is no command.
  bool Ended() const { return ended_.load(std::memory_order_acquire); }

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

  struct Outgoing {
    std::string body;
    std::vector<UniqueFd> fds;
  };

  UniqueFd socket_;
  std::atomic<bool> news_{false};
  std::atomic<bool> ended_{false};
  std::atomic<uint32_t> sleeping_{0};
  std::mutex mutex_;
  std::deque<ReceivedCommand> received_;
  std::deque<Outgoing> outgoing_;
  std::thread receiver_;  // last: it uses everything above
};

}  // namespace tandem::engine
