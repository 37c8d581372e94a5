#include "engine/engine_link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <utility>

#include "ipc/futex.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxWaiting = 1024;

}  // namespace

ReceivedCommand::ReceivedCommand() = default;
ReceivedCommand::ReceivedCommand(ReceivedCommand&&) noexcept = default;
ReceivedCommand& ReceivedCommand::operator=(ReceivedCommand&&) noexcept = default;
ReceivedCommand::~ReceivedCommand() = default;

EngineLink::EngineLink(UniqueFd socket) : socket_(std::move(socket)) {
  receiver_ = std::thread([this] { ReceiveLoop(); });
}

EngineLink::~EngineLink() {
  ::shutdown(socket_.get(), SHUT_RDWR);  // ends the receiver's read
  receiver_.join();
}

void EngineLink::ReceiveLoop() {
  while (true) {
    Result<FdMessage> message = ReceiveMessage(socket_.get());
    ReceivedCommand received;
    if (message.ok()) {
      received.command = std::make_unique<v1::Command>();
      received.fds = std::move(message->fds);
    }
    if (!message.ok() || !received.command->ParseFromString(message->body)) {
      ended_.store(true, std::memory_order_seq_cst);
      Wake();
      return;
    }
    {
      std::lock_guard lock(mutex_);
      received_.push_back(std::move(received));
      news_.store(true, std::memory_order_seq_cst);
    }
    Wake();
  }
}

void EngineLink::Wake() {
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  sleeping_.store(0, std::memory_order_relaxed);
  FutexWake(&sleeping_);
}

bool EngineLink::Next(ReceivedCommand* command) {
  if (!news_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  if (received_.empty()) return false;
  *command = std::move(received_.front());
  received_.pop_front();
  if (received_.empty()) news_.store(false, std::memory_order_relaxed);
  return true;
}

void EngineLink::Send(const v1::Message& message, const std::vector<int>& fds, bool droppable) {
  std::string body = message.SerializeAsString();
  if (outgoing_.empty()) {
    Status sent = SendMessage(socket_.get(), body, fds, false);
    if (sent.code() != Code::kResourceExhausted) return;  // sent, or the end of file will tell
  } else if (droppable && outgoing_.size() >= kMaxWaiting) {
    return;
  }
  Outgoing waiting{std::move(body), {}};
  for (int fd : fds) waiting.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  outgoing_.push_back(std::move(waiting));
}

bool EngineLink::Flush() {
  while (!outgoing_.empty()) {
    std::vector<int> fds;
    for (const UniqueFd& fd : outgoing_.front().fds) fds.push_back(fd.get());
    Status sent = SendMessage(socket_.get(), outgoing_.front().body, fds, false);
    if (sent.code() == Code::kResourceExhausted) return false;
    outgoing_.pop_front();
  }
  return true;
}

}  // namespace tandem::engine
