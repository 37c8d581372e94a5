#include "daemon/supervisor/engine_connection.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <utility>

#include "common/fd_socket.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using engine::v1::Command;
using engine::v1::Message;

Status StatusOf(const engine::v1::Ack& ack) {
  if (ack.code() == 0) return Status::Ok();
  return Status(static_cast<Code>(ack.code()), ack.message(),
                StatusDetail{.reason = ack.reason(), .who = ack.who(), .field = ack.field()});
}

// An engine that does not read its socket (stopped, hung) must not hold a sender for ever.
constexpr timeval kSendTimeout{10, 0};

}  // namespace

EngineConnection::EngineConnection(UniqueFd socket, int wake_fd, std::string name)
    : socket_(std::move(socket)),
      wake_fd_(wake_fd),
      name_(std::move(name)),
      last_heard_(Clock::now().time_since_epoch().count()) {
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  reader_ = std::thread([this] { Read(); });
}

EngineConnection::~EngineConnection() {
  Close("tandemd has closed the connection");
  reader_.join();
}

Status EngineConnection::Send(Command& command, const std::vector<int>& fds, Pending* pending) {
  std::lock_guard<std::mutex> order(send_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!state_.ok()) return state_;
    if (pending != nullptr && !calls_ended_.ok()) return calls_ended_;
    command.set_id(next_id_++);
    if (pending != nullptr) pending_[command.id()] = pending;
  }
  return SendMessage(socket_.get(), command.SerializeAsString(), fds);
}

Status EngineConnection::Exchange(Command& command, const std::vector<int>& fds,
                                  std::chrono::milliseconds deadline, Pending& pending) {
  auto end = Clock::now() + deadline;
  Status sent = Send(command, fds, &pending);
  std::unique_lock<std::mutex> lock(mutex_);
  if (sent.ok())
    changed_.wait_until(lock, end, [&] { return pending.done || !state_.ok() || !calls_ended_.ok(); });
  pending_.erase(command.id());
  if (!sent.ok()) return sent;
  if (pending.done) return pending.status;
  if (!state_.ok()) return state_;
  if (!calls_ended_.ok()) return calls_ended_;
  return DeadlineExceeded("the " + name_ + " has not answered for " + std::to_string(deadline.count()) +
                          " ms");
}

Status EngineConnection::Call(Command& command, const std::vector<int>& fds,
                              std::chrono::milliseconds deadline) {
  Pending pending;
  return Exchange(command, fds, deadline, pending);
}

Status EngineConnection::Post(Command& command, const std::vector<int>& fds) {
  return Send(command, fds, nullptr);
}

Result<UniqueFd> EngineConnection::AllocateSegment(uint64_t segment_id, uint64_t bytes,
                                                   std::chrono::milliseconds deadline) {
  Command command;
  command.mutable_allocate_segment()->set_segment_id(segment_id);
  command.mutable_allocate_segment()->set_bytes(bytes);
  Pending pending;
  pending.segment_id = segment_id;
  TANDEM_RETURN_IF_ERROR(Exchange(command, {}, deadline, pending));
  if (!pending.segment.valid()) return Internal("the engine acknowledged a segment without its descriptor");
  return std::move(pending.segment);
}

Result<std::string> EngineConnection::Ask(Command& command, std::chrono::milliseconds deadline) {
  Pending pending;
  TANDEM_RETURN_IF_ERROR(Exchange(command, {}, deadline, pending));
  return std::move(pending.payload);
}

Result<std::unique_ptr<engine::v1::Queue>> EngineConnection::QueueSnapshot(
    std::chrono::milliseconds deadline) {
  std::lock_guard<std::mutex> one(queue_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.reset();
  }
  Command command;
  command.mutable_queue_snapshot();
  TANDEM_RETURN_IF_ERROR(Call(command, {}, deadline));
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue_ == nullptr) return Internal("the engine acknowledged a queue snapshot without sending it");
  return std::move(queue_);
}

std::deque<std::unique_ptr<Message>> EngineConnection::TakeInbox() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(inbox_, {});
}

Status EngineConnection::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

EngineConnection::Clock::time_point EngineConnection::last_heard() const {
  return Clock::time_point(Clock::duration(last_heard_.load(std::memory_order_relaxed)));
}

void EngineConnection::EndCalls(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_ended_ = Unavailable(reason);
  }
  changed_.notify_all();
}

void EngineConnection::Close(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_.ok()) state_ = Unavailable(reason);
  }
  changed_.notify_all();
  ::shutdown(socket_.get(), SHUT_RDWR);
}

bool EngineConnection::AwaitAllRead(std::chrono::milliseconds deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, deadline, [this] { return all_read_; });
}

void EngineConnection::Read() {
  Status ended;
  while (ended.ok()) {
    Result<FdMessage> packet = ReceiveMessage(socket_.get());
    if (!packet.ok()) {
      ended = packet.status().code() == Code::kUnavailable ? Unavailable(kEndOfFile) : packet.status();
      break;
    }
    last_heard_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    auto message = std::make_unique<Message>();
    if (!message->ParseFromString(packet->body)) {
      ended = Unavailable("the engine sent a malformed message");
    } else {
      ended = Handle(std::move(message), std::move(packet->fds));
    }
  }
  Close(ended.message());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all_read_ = true;
  }
  changed_.notify_all();
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_, &one, sizeof(one));
}

Status EngineConnection::Handle(std::unique_ptr<Message> message, std::vector<UniqueFd> fds) {
  switch (message->message_case()) {
    case Message::kAck: {
      if (message->ack().id() > last_answered())
        last_answered_.store(message->ack().id(), std::memory_order_relaxed);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        auto found = pending_.find(message->ack().id());
        if (found != pending_.end()) {
          found->second->status = StatusOf(message->ack());
          found->second->payload = message->ack().payload();
          found->second->done = true;
          changed_.notify_all();
          return Status::Ok();
        }
      }
      if (message->ack().code() == 0) return Status::Ok();
      break;  // a refusal of something posted: the keeper wants to know
    }
    case Message::kAllocated: {
      std::lock_guard<std::mutex> lock(mutex_);
      for (auto& [id, pending] : pending_) {
        if (pending->segment_id == message->allocated().segment_id() && !pending->segment.valid() &&
            fds.size() == 1) {
          pending->segment = std::move(fds[0]);
          break;
        }
      }
      return Status::Ok();
    }
    case Message::kQueue: {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_ = std::make_unique<engine::v1::Queue>(std::move(*message->mutable_queue()));
      return Status::Ok();
    }
    case Message::kReady:
    case Message::kLaunchDone:
    case Message::kLaunchFailed:
    case Message::kLate:
    case Message::kEnded:
    case Message::kPeerSilent: break;
    // An engine's inventory is taken before there is a connection (AdoptEngine).
    case Message::kInventory:
    case Message::kHeld:
    case Message::kInventoryEnd:
    case Message::MESSAGE_NOT_SET: return Unavailable("the engine sent a message of an unknown kind");
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(message));
  }
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_fd_, &one, sizeof(one));
  return Status::Ok();
}

}  // namespace tandem::daemon
