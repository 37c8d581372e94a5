#include "engine/engine_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "ipc/futex.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxWaiting = 1024;
// How soon an engine without tandemd notices that it is to end.
constexpr int kLookAgainMs = 100;

}  // namespace

ReceivedCommand::ReceivedCommand() = default;
ReceivedCommand::ReceivedCommand(ReceivedCommand&&) noexcept = default;
ReceivedCommand& ReceivedCommand::operator=(ReceivedCommand&&) noexcept = default;
ReceivedCommand::~ReceivedCommand() = default;

EngineLink::EngineLink(UniqueFd socket) : socket_(std::move(socket)) {
  receiver_ = std::thread([this] { ReceiveLoop(); });
}

EngineLink::~EngineLink() {
  closing_.store(true, std::memory_order_seq_cst);
  ::shutdown(socket_.get(), SHUT_RDWR);  // ends the receiver's read
  {
    std::lock_guard lock(mutex_);
    taken_.notify_all();
  }
  receiver_.join();
}

void EngineLink::ReceiveLoop() {
  for (int socket = socket_.get(); socket >= 0; socket = AwaitSuccessor()) Receive(socket);
  ended_.store(true, std::memory_order_seq_cst);
  Wake();
}

void EngineLink::Receive(int socket) {
  while (true) {
    Result<FdMessage> message = ReceiveMessage(socket);
    ReceivedCommand received;
    if (message.ok()) {
      received.command = std::make_unique<v1::Command>();
      received.fds = std::move(message->fds);
    }
    if (!message.ok() || !received.command->ParseFromString(message->body)) return;
    {
      std::lock_guard lock(mutex_);
      received_.push_back(std::move(received));
      news_.store(true, std::memory_order_seq_cst);
    }
    Wake();
  }
}

void EngineLink::AwaitSuccessors(UniqueFd listener, std::chrono::milliseconds grace) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  grace_ = grace;
}

Result<UniqueFd> EngineLink::Accept(int listener) const {
  UniqueFd peer(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return SystemError("accept", errno);
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    return SystemError("getsockopt(SO_PEERCRED)", errno);
  if (credentials.uid != ::geteuid())
    return PermissionDenied("uid " + std::to_string(credentials.uid) + " is not this engine's");
  return peer;
}

int EngineLink::AwaitSuccessor() {
  int listener = -1;
  auto until = std::chrono::steady_clock::now();
  {
    std::lock_guard lock(mutex_);
    listener = listener_.get();
    until += grace_;
  }
  while (listener >= 0 && !closing_.load() && std::chrono::steady_clock::now() < until) {
    pollfd waiting{listener, POLLIN, 0};
    if (::poll(&waiting, 1, kLookAgainMs) <= 0) continue;
    Result<UniqueFd> peer = Accept(listener);
    if (!peer.ok()) continue;
    std::unique_lock lock(mutex_);
    successor_ = *std::move(peer);
    has_successor_.store(true, std::memory_order_seq_cst);
    Wake();
    taken_.wait(lock, [this] { return !successor_.valid() || closing_.load(); });
    return closing_.load() ? -1 : socket_.get();
  }
  return -1;
}

void EngineLink::TakeSuccessor() {
  std::lock_guard lock(mutex_);
  outgoing_.clear();
  socket_ = std::move(successor_);
  ++successions_;
  has_successor_.store(false, std::memory_order_seq_cst);
  taken_.notify_all();
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
    if (sent.code() != Code::kResourceExhausted) return;  // sent, or the end of file will show it
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
