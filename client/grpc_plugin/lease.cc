#include "client/grpc_plugin/lease.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <thread>
#include <vector>

#include "client/grpc_plugin/convert.h"
#include "common/exceptions.h"
#include "common/fd_socket.h"
#include "common/mps_endpoint.h"
#include "common/protocol.h"
#include "common/utf8.h"

namespace tandem::client {
namespace {

constexpr size_t kMaxTransfer = 4096;
constexpr char kLetGo[] = "LET_GO";
constexpr auto kOrphanAge = std::chrono::seconds(60);
constexpr size_t kMaxLeaseMessage = 1 << 20;
// Between two tries to go back to a daemon.
constexpr auto kTryAgain = std::chrono::milliseconds(20);
// For one answer; the wait cannot be interrupted.
constexpr auto kReattachTime = std::chrono::milliseconds(2000);
// How much later than a call a lease may notice that its daemon has gone.
constexpr auto kNoticeTime = std::chrono::milliseconds(2000);

Status NoDaemon(const std::string& text) { return Unavailable(text).WithDetail({.reason = "NO_DAEMON"}); }

// gRPC ends the process where it cannot make its threads. As many are made and ended here first.
Status CheckRoomForThreads() {
  constexpr size_t kThreads = 10;
  std::latch tried(1);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  Status status;
  while (status.ok() && threads.size() < kThreads) {
    Result<std::thread> thread = StartThread("a call", [&tried] { tried.wait(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  tried.count_down();
  for (std::thread& thread : threads) thread.join();
  return status;
}

// A daemon that refuses a client may close its end before it has read what the client sends. The first
// receive reports that, and the refusal waits behind.
Result<FdMessage> ReceiveAnswer(int socket) {
  Result<FdMessage> answer = ReceiveMessage(socket, kMaxLeaseMessage);
  pollfd waiting{socket, POLLIN, 0};
  const bool again = !answer.ok() && answer.status().code() == Code::kUnavailable &&
                     answer.status().detail().reason != "EOF" && ::poll(&waiting, 1, 0) > 0;
  return again ? ReceiveMessage(socket, kMaxLeaseMessage) : std::move(answer);
}

}  // namespace

Lease::~Lease() { Stop(); }

Result<v1::AttachReply> Lease::Attach(const std::string& path, const std::string& name,
                                      Milliseconds deadline) {
  TANDEM_RETURN_IF_ERROR(CheckRoomForThreads());
  path_ = path;
  auto end = Clock::now() + deadline;
  Result<UniqueFd> socket = ConnectSeqpacket(path);
  if (!socket.ok()) {
    const Status& why = socket.status();
    return why.code() == Code::kUnavailable ? NoDaemon(why.message()) : why;
  }
  socket_ = *std::move(socket);
  v1::LeaseMessage message;
  v1::AttachRequest& request = *message.mutable_attach();
  request.set_protocol_min(kProtocol);
  request.set_protocol_max(kProtocol);
  request.set_client_version(TANDEM_VERSION);
  request.set_name(name);
  const MpsEndpoint mps = ProbeMps(MpsPipeDirectory());
  request.set_mps_pipe_directory(AsUtf8(mps.directory));
  request.set_mps_answers(mps.answers);
  request.set_mps_device(mps.device);
  request.set_mps_inode(mps.inode);
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  request.set_device_max_connections(connections == nullptr ? 0
                                                            : static_cast<uint32_t>(std::atoi(connections)));
  TANDEM_ASSIGN_OR_RETURN(v1::AttachReply reply, Ask(socket_.get(), message.SerializeAsString(), end));
  token_ = reply.token();
  session_id_ = reply.session_id();
  grace_ = Milliseconds(reply.restart_grace_ms());
  return reply;
}

Result<v1::AttachReply> Lease::Ask(int socket, const std::string& message, Clock::time_point end) const {
  const Status sent = SendMessage(socket, message);
  if (!sent.ok() && sent.code() != Code::kUnavailable) return sent;
  // The daemon has closed its end already: what it has said before that is there.
  return AwaitReply(socket, sent.ok() ? end : Clock::now());
}

Result<v1::AttachReply> Lease::AwaitReply(int socket, Clock::time_point end) const {
  pollfd waiting{socket, POLLIN, 0};
  while (true) {
    auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now()).count();
    int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
    if (ready > 0) break;
    if (ready == 0 || left <= 0) return NoDaemon("the daemon at " + path_ + " does not answer");
  }
  Result<FdMessage> answer = ReceiveAnswer(socket);
  if (!answer.ok()) return NoDaemon("the daemon at " + path_ + " has closed the connection");
  v1::LeaseMessage reply;
  if (!reply.ParseFromString(answer->body))
    return Internal("the daemon at " + path_ + " does not speak Tandem's protocol");
  if (reply.has_refused()) {
    Status refused = FromProto(reply.refused());
    return refused.ok() ? Unavailable("the daemon refuses the session") : refused;
  }
  if (!reply.has_attached()) return Internal("the daemon at " + path_ + " does not speak Tandem's protocol");
  return reply.attached();
}

Status Lease::Start(std::function<void(const Status&)> on_lost) {
  on_lost_ = std::move(on_lost);
  TANDEM_ASSIGN_OR_RETURN(reader_, StartThread("the lease", [this] { Read(); }));
  return Status::Ok();
}

Status Lease::ReadToEnd() try {
  while (true) {
    Result<FdMessage> message = ReceiveMessage(socket_.get(), kMaxLeaseMessage);
    if (message.status().code() == Code::kResourceExhausted) return message.status();
    if (!message.ok()) return DaemonLost(path_);
    v1::LeaseMessage parsed;
    Status filed =
        parsed.ParseFromString(message->body) ? Status::Ok() : InvalidArgument("malformed lease message");
    if (filed.ok() && parsed.has_refused()) {
      Status refused = FromProto(parsed.refused());
      return refused.ok() ? DaemonLost(path_) : refused;
    }
    if (filed.ok() && parsed.has_checkpointed()) return Unavailable("").WithDetail({.reason = kLetGo});
    if (filed.ok() && parsed.has_transfer()) filed = File(parsed.transfer(), std::move(message->fds));
    if (!filed.ok())
      return Unavailable("the daemon at " + path_ + " sent a malformed message: " + filed.message());
  }
}
TANDEM_CATCH_TO_STATUS

void Lease::Read() {
  Status end;
  do {
    end = ReadToEnd();
    if (end.detail().reason == kLetGo) end = AwaitRestored();
  } while (end.ok() || (end.detail().reason == "DAEMON_LOST" && Reattach().ok()));
  bool stopping;
  {
    std::lock_guard lock(mutex_);
    lost_ = end;
    stopping = stopping_;
  }
  changed_.notify_all();
  if (!stopping) on_lost_(end);
}

Status Lease::Reattach() {
  const auto end = Clock::now() + grace_;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || grace_.count() == 0) return DaemonLost(path_);
    attached_ = false;
  }
  changed_.notify_all();
  while (true) {
    Result<UniqueFd> socket = TryReattach(end);
    const bool over = !socket.ok() && socket.status().detail().reason != "NO_DAEMON";
    std::unique_lock lock(mutex_);
    if (socket.ok() && !stopping_) {
      // Under both: no transfer goes half to one daemon and half to the next, and Stop ends the socket that
      // is read.
      lock.unlock();
      std::scoped_lock both(send_mutex_, mutex_);
      if (stopping_ || ::dup3(socket->get(), socket_.get(), O_CLOEXEC) < 0) return DaemonLost(path_);
      transfers_.clear();
      attached_ = true;
      ++daemon_;
      changed_.notify_all();
      return Status::Ok();
    }
    if (over || Clock::now() >= end) return DaemonLost(path_);
    if (changed_.wait_for(lock, kTryAgain, [this] { return stopping_; })) return DaemonLost(path_);
  }
}

Result<UniqueFd> Lease::TryReattach(Clock::time_point end) {
  Result<UniqueFd> socket = ConnectSeqpacket(path_);
  if (!socket.ok()) return NoDaemon(socket.status().message());
  v1::LeaseMessage message;
  message.mutable_reattach()->set_token(token_);
  message.mutable_reattach()->set_session_id(session_id_);
  const Status answer =
      Ask(socket->get(), message.SerializeAsString(), std::min(end, Clock::now() + kReattachTime)).status();
  // A daemon that stops again: the next one may know the session.
  if (answer.code() == Code::kUnavailable) return NoDaemon(answer.message());
  TANDEM_RETURN_IF_ERROR(answer);
  return socket;
}

uint64_t Lease::AwaitAttached(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return attached_ || !lost_.ok() || stopping_; });
  return daemon_;
}

bool Lease::AwaitNext(uint64_t daemon, Clock::time_point deadline, bool announced) {
  std::unique_lock lock(mutex_);
  if (!WaitsForDaemons() && !paused_) return false;
  // The end of a lease and that of a call come by two sockets.
  const auto noticed = announced ? deadline : std::min(deadline, Clock::now() + kNoticeTime);
  const auto over = [this] { return !lost_.ok() || stopping_; };
  changed_.wait_until(lock, noticed, [&] { return over() || !attached_ || daemon_ != daemon; });
  if (attached_ && daemon_ == daemon) return false;
  changed_.wait_until(lock, deadline, [&] { return over() || (attached_ && daemon_ != daemon); });
  return !over() && attached_ && daemon_ != daemon;
}

void Lease::Pause() {
  std::lock_guard lock(mutex_);
  paused_ = true;
  attached_ = false;
  changed_.notify_all();
}

void Lease::Resume() {
  std::lock_guard lock(mutex_);
  paused_ = false;
  attached_ = true;
  ++daemon_;
  changed_.notify_all();
}

bool Lease::paused() {
  std::lock_guard lock(mutex_);
  return paused_;
}

std::string Lease::token() {
  std::lock_guard lock(mutex_);
  return token_;
}

Status Lease::LetGo(const std::string& secret, Clock::time_point deadline) {
  v1::LeaseMessage message;
  message.mutable_checkpoint()->set_secret(secret);
  uint64_t daemon = 0;
  {
    std::lock_guard lock(mutex_);
    daemon = daemon_;
  }
  {
    std::lock_guard lock(send_mutex_);
    TANDEM_RETURN_IF_ERROR(SendMessage(socket_.get(), message.SerializeAsString()));
  }
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline,
                      [&] { return let_go_ || !lost_.ok() || stopping_ || daemon_ != daemon; });
  if (let_go_) return Status::Ok();
  return lost_.ok() ? Restarting() : lost_;
}

Status Lease::AwaitRestored() {
  // A checkpoint takes no socket whose other end is elsewhere. A forked child closes this number, which stays taken.
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing.valid()) return SystemError("open(/dev/null)", errno);
  {
    std::scoped_lock both(send_mutex_, mutex_);
    if (stopping_ || ::dup3(nothing.get(), socket_.get(), O_CLOEXEC) < 0) return DaemonLost(path_);
    let_go_ = true;
    changed_.notify_all();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !let_go_; });
  return stopping_ ? Unavailable("the client has ended") : Status::Ok();
}

Status Lease::Restore(const std::string& secret, Clock::time_point deadline,
                      const std::function<void(const v1::AttachReply&)>& on_attached) {
  Result<UniqueFd> socket = ConnectSeqpacket(path_);
  if (!socket.ok()) return NoDaemon(socket.status().message());
  v1::LeaseMessage message;
  message.mutable_restore()->set_token(token_);
  message.mutable_restore()->set_session_id(session_id_);
  message.mutable_restore()->set_secret(secret);
  TANDEM_ASSIGN_OR_RETURN(const v1::AttachReply reply,
                          Ask(socket->get(), message.SerializeAsString(), deadline));
  on_attached(reply);
  std::scoped_lock both(send_mutex_, mutex_);
  if (stopping_ || ::dup3(socket->get(), socket_.get(), O_CLOEXEC) < 0)
    return Unavailable("the session's socket cannot be made");
  token_ = reply.token();
  grace_ = Milliseconds(reply.restart_grace_ms());
  transfers_.clear();
  let_go_ = false;
  paused_ = false;
  attached_ = true;
  ++daemon_;
  changed_.notify_all();
  return Status::Ok();
}

Status Lease::File(const v1::FdTransfer& part, std::vector<UniqueFd> fds) {
  size_t total = part.total(), index = part.index();
  if (total > kMaxTransfer || index > total || fds.size() > total - index) {
    return InvalidArgument("a part of a descriptor transfer lies outside its total");
  }
  std::lock_guard lock(mutex_);
  auto now = Clock::now();
  std::erase_if(transfers_, [now](const auto& entry) { return now - entry.second.since > kOrphanAge; });
  FdBatch& transfer = transfers_[part.transfer_id()];
  transfer.since = now;
  if (transfer.fds.empty()) transfer.fds.resize(total);
  if (transfer.fds.size() != total) return InvalidArgument("parts of a descriptor transfer disagree");
  for (UniqueFd& fd : fds) {
    UniqueFd& place = transfer.fds[index++];
    if (place.valid()) return InvalidArgument("a part of a descriptor transfer came twice");
    place = std::move(fd);
    ++transfer.received;
  }
  changed_.notify_all();
  return Status::Ok();
}

Result<std::vector<UniqueFd>> Lease::Take(uint64_t transfer_id, uint64_t daemon, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  auto complete = [&] {
    auto it = transfers_.find(transfer_id);
    return it != transfers_.end() && it->second.received == it->second.fds.size();
  };
  const auto gone = [&] { return !lost_.ok() || !attached_ || daemon_ != daemon; };
  changed_.wait_until(lock, deadline, [&] { return complete() || gone(); });
  if (complete()) {
    std::vector<UniqueFd> fds = std::move(transfers_[transfer_id].fds);
    transfers_.erase(transfer_id);
    return fds;
  }
  if (!lost_.ok()) return lost_;
  if (gone()) return Restarting();
  return DeadlineExceeded("the daemon's descriptors did not come in time")
      .WithDetail({.reason = "DAEMON_SLOW"});
}

Result<uint64_t> Lease::Send(const std::vector<int>& fds) {
  std::lock_guard lock(send_mutex_);
  uint64_t id = next_transfer_++;
  for (size_t index = 0; index < fds.size(); index += kMaxFdsPerMessage) {
    size_t count = std::min(kMaxFdsPerMessage, fds.size() - index);
    v1::LeaseMessage message;
    message.mutable_transfer()->set_transfer_id(id);
    message.mutable_transfer()->set_index(static_cast<uint32_t>(index));
    message.mutable_transfer()->set_total(static_cast<uint32_t>(fds.size()));
    auto first = fds.begin() + static_cast<ptrdiff_t>(index);
    const Status sent = SendMessage(socket_.get(), message.SerializeAsString(),
                                    std::vector<int>(first, first + static_cast<ptrdiff_t>(count)));
    if (sent.code() == Code::kUnavailable) return DaemonLost(path_);
    TANDEM_RETURN_IF_ERROR(sent);
  }
  return id;
}

void Lease::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (socket_.valid()) ::shutdown(socket_.get(), SHUT_RDWR);
  if (reader_.joinable()) reader_.join();
}

}  // namespace tandem::client
