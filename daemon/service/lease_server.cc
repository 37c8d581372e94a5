#include "daemon/service/lease_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/descriptor_reserve.h"
#include "common/fd_socket.h"
#include "daemon/control/base/ledger.h"
#include "daemon/control/base/status_proto.h"
#include "daemon/service/peer_identity.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {
namespace {

// The subject of an epoll event: the connection's id above two bits of kind.
enum Kind : uint64_t { kListener = 0, kWake = 1, kSocket = 2, kPidfd = 3 };
constexpr uint64_t Tag(uint64_t id, Kind kind) { return id << 2 | kind; }

constexpr size_t kMaxLeaseMessage = 64 * 1024;
// Packets taken from one client before the others get their turn.
constexpr int kPacketsPerTurn = 16;
// Connections accepted before those that are there get their turn.
constexpr int kAcceptsPerTurn = 16;

SocketFileOptions FileOf(const LeaseServerOptions& options) {
  return {.path = options.path, .type = SOCK_SEQPACKET, .mode = options.mode, .group = options.group};
}

}  // namespace

Result<std::unique_ptr<LeaseServer>> LeaseServer::Start(LeaseServerOptions options, Control& control) {
  TANDEM_ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(FileOf(options)));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return SystemError("epoll_create1 or eventfd", errno);
  std::unique_ptr<LeaseServer> server(
      new LeaseServer(std::move(options), control, std::move(file), std::move(epoll), std::move(wake)));
  control.SetLeasePort(server.get());
  for (const auto& [session_id, peer] : control.AwaySessions()) server->Await(session_id, peer);
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

LeaseServer::LeaseServer(LeaseServerOptions options, Control& control, SocketFile file, UniqueFd epoll,
                         UniqueFd wake)
    : options_(std::move(options)),
      control_(control),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      by_owner_(options_.owner_rate),
      by_uid_(options_.uid_rate),
      file_(std::move(file)) {
  Watch(file_.fd(), Tag(0, kListener), EPOLLIN, true);
  Watch(wake_.get(), Tag(0, kWake), EPOLLIN, true);
}

LeaseServer::Connection::~Connection() {
  if (!socket.valid()) return;
  ::shutdown(socket.get(), SHUT_RDWR);
  std::vector<UniqueFd> last;
  last.push_back(std::move(socket));
  CloseElsewhere(std::move(last));
}

LeaseServer::~LeaseServer() {
  control_.SetLeasePort(nullptr);
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  file_.Unlink();
}

void LeaseServer::Watch(int fd, uint64_t tag, uint32_t events, bool add) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

std::shared_ptr<LeaseServer::Connection> LeaseServer::Find(uint64_t connection_id) {
  std::lock_guard lock(mutex_);
  auto it = connections_.find(connection_id);
  return it == connections_.end() ? nullptr : it->second;
}

size_t LeaseServer::connections() {
  std::lock_guard lock(mutex_);
  return connections_.size();
}

// The thread sleeps without limit while nothing can become too old.
int LeaseServer::Timeout() {
  std::lock_guard lock(mutex_);
  return orphans_possible_ || awaited_ > 0 || connections_.size() > by_session_.size() ? 500 : -1;
}

void LeaseServer::Run() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), Timeout());
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const uint64_t id = event.data.u64 >> 2;
      switch (static_cast<Kind>(event.data.u64 & 3)) {
        case kListener: Accept(); break;
        case kWake: {
          uint64_t value;
          [[maybe_unused]] ssize_t n = ::read(wake_.get(), &value, sizeof(value));
          break;
        }
        case kPidfd: Drop(id, "its process has ended"); break;
        case kSocket:
          if (event.events & EPOLLOUT) Flush(id);
          if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) Readable(id);
          break;
      }
    }
    DropLate();
    bool orphans = false;
    {
      std::lock_guard lock(mutex_);
      orphans = orphans_possible_;
    }
    if (orphans) {
      const bool left = control_.ReapOrphans();
      std::lock_guard lock(mutex_);
      orphans_possible_ = left;
    }
  }
}

// For one more connection that has not attached: of the user who has most of them the one that has waited
// longest goes. So a user who opens connections for nothing keeps nobody out, nor itself.
void LeaseServer::MakeRoom() {
  uint64_t oldest = 0;
  {
    std::lock_guard lock(mutex_);
    if (connections_.size() - by_session_.size() < options_.max_unattached) return;
    std::map<uint32_t, std::vector<uint64_t>> waiting;  // by user, the oldest first
    for (const auto& [id, connection] : connections_) {
      if (connection->session_id == 0) waiting[connection->peer.uid].push_back(id);
    }
    const auto most = std::max_element(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    if (most == waiting.end()) return;
    oldest = most->second.front();
  }
  Drop(oldest, "it did not attach, and other clients wait");
}

Result<bool> LeaseServer::Mend() {
  {
    std::lock_guard lock(mutex_);
    if (file_.IsThere()) return false;
  }
  TANDEM_ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(FileOf(options_)));
  std::lock_guard lock(mutex_);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, file_.fd(), nullptr);
  file_ = std::move(file);
  Watch(file_.fd(), Tag(0, kListener), EPOLLIN, true);
  return true;
}

void LeaseServer::Accept() {
  for (int i = 0; i < kAcceptsPerTurn && AcceptOne(); ++i) {
  }
}

Status LeaseServer::CheckRate(uint32_t uid, const std::optional<std::string>& owner) {
  const std::string user = std::to_string(uid);
  const bool may = owner.has_value() ? by_owner_.Take(user + " " + *owner) : by_uid_.Take(user);
  if (may) return Status::Ok();
  if (options_.on_refused) options_.on_refused(uid);
  const RateLimiter::Limit& limit = owner.has_value() ? options_.owner_rate : options_.uid_rate;
  const std::string who = owner.has_value() && !owner->empty() ? "cgroup " + *owner : "uid " + user;
  return Status(Code::kResourceExhausted,
                who + " attaches too often: over " + std::to_string(static_cast<int64_t>(limit.per_second)) +
                    " times a second",
                {.reason = "QUOTA_ATTACHES",
                 .who = who,
                 .field = {},
                 .limit = static_cast<long long>(limit.per_second)});
}

bool LeaseServer::AcceptOne() {
  UniqueFd socket;
  {
    std::lock_guard lock(mutex_);
    socket = UniqueFd(::accept4(file_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  if (!socket.valid()) {
    // Out of descriptors: leave the connection in the queue, and do not spin on it.
    if (errno == EMFILE || errno == ENFILE) ::usleep(10000);
    return false;
  }
  auto connection = std::make_shared<Connection>();
  connection->socket = std::move(socket);
  const auto refused = [&](const Status& why) {
    if (!why.ok()) Refuse(*connection, why);
    return !why.ok();
  };
  // Its connection for calls would be refused without a word.
  if (!HasRoomForClient(connection->socket.get())) {
    refused(TooFewDescriptors());
    return true;
  }
  // Before anything that costs more: a user that attaches in a loop must not keep others waiting.
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(connection->socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
      refused(CheckRate(credentials.uid, std::nullopt))) {
    return true;
  }
  Result<std::pair<PeerIdentity, UniqueFd>> peer = IdentifyPeer(connection->socket.get());
  if (refused(peer.status())) return true;
  connection->peer = peer->first;
  connection->pidfd = std::move(peer->second);
  if (refused(CheckRate(connection->peer.uid, OwnerOf(connection->peer.cgroup)))) return true;
  MakeRoom();
  {
    std::lock_guard lock(mutex_);
    connection->id = next_connection_++;
    connections_[connection->id] = connection;
  }
  Watch(connection->socket.get(), Tag(connection->id, kSocket), EPOLLIN | EPOLLRDHUP, true);
  Watch(connection->pidfd.get(), Tag(connection->id, kPidfd), EPOLLIN, true);
  return true;
}

void LeaseServer::Readable(uint64_t connection_id) {
  const std::shared_ptr<Connection> connection = Find(connection_id);
  if (!connection) return;
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    std::vector<UniqueFd> refused;
    Result<FdMessage> message = ReceiveMessage(connection->socket.get(), kMaxLeaseMessage, &refused);
    CloseElsewhere(std::move(refused));
    if (!message.ok()) {
      const std::string& reason = message.status().detail().reason;
      if (reason == "WOULD_BLOCK") return;
      if (reason == "EOF") return Drop(connection_id, "its process has ended", true);
      Refuse(*connection, message.status());
      return Drop(connection_id, "its lease carried a bad message: " + message.status().message());
    }
    const Status handled = Handle(*connection, message->body, ForeignFds(std::move(message->fds)));
    if (!handled.ok()) {
      Refuse(*connection, handled);
      return Drop(connection_id, "its lease carried a bad message: " + handled.message());
    }
  }
}

Status LeaseServer::Attach(Connection& connection, v1::AttachReply reply) {
  connection.session_id = reply.session_id();
  v1::LeaseMessage answer;
  *answer.mutable_attached() = std::move(reply);
  std::lock_guard lock(mutex_);
  const auto before = by_session_.find(connection.session_id);
  if (before != by_session_.end()) {
    // The one that stood for it, or a lease whose answer the client did not wait for.
    const auto earlier = connections_.find(before->second);
    if (earlier != connections_.end()) Forget(earlier);
  }
  by_session_[connection.session_id] = connection.id;
  return SendLocked(connection, {answer.SerializeAsString(), {}});
}

void LeaseServer::Await(uint64_t session_id, const PeerIdentity& peer) {
  auto connection = std::make_shared<Connection>();
  connection->peer = peer;
  connection->session_id = session_id;
  connection->awaited = true;
  connection->pidfd = OpenProcess(peer.pid, peer.start_ticks);
  std::lock_guard lock(mutex_);
  connection->id = next_connection_++;
  connections_[connection->id] = connection;
  by_session_[session_id] = connection->id;
  ++awaited_;
  // Without a process the deadline finds out.
  if (connection->pidfd.valid()) Watch(connection->pidfd.get(), Tag(connection->id, kPidfd), EPOLLIN, true);
}

std::shared_ptr<LeaseServer::Connection> LeaseServer::Forget(Connections::iterator found) {
  std::shared_ptr<Connection> connection = found->second;
  connections_.erase(found);
  if (connection->awaited) --awaited_;
  // Both leave the epoll set before they are closed: a fork of the client may hold the other end open.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->pidfd.get(), nullptr);
  return connection;
}

Status LeaseServer::Handle(Connection& connection, const std::string& body, ForeignFds fds) {
  v1::LeaseMessage message;
  if (!message.ParseFromString(body)) return InvalidArgument("the lease message is malformed");
  if (message.has_attach()) {
    if (connection.session_id != 0) return InvalidArgument("this lease is attached already");
    TANDEM_ASSIGN_OR_RETURN(v1::AttachReply reply, control_.Attach(connection.peer, message.attach()));
    return Attach(connection, std::move(reply));
  }
  if (message.has_reattach()) {
    if (connection.session_id != 0) return InvalidArgument("this lease is attached already");
    TANDEM_ASSIGN_OR_RETURN(v1::AttachReply reply, control_.Reattach(connection.peer, message.reattach()));
    return Attach(connection, std::move(reply));
  }
  if (message.has_restore()) {
    if (connection.session_id != 0) return InvalidArgument("this lease is attached already");
    TANDEM_ASSIGN_OR_RETURN(v1::AttachReply reply, control_.Restore(connection.peer, message.restore()));
    return Attach(connection, std::move(reply));
  }
  if (message.has_checkpoint()) return LetGo(connection, message.checkpoint());
  if (message.has_transfer()) {
    if (connection.session_id == 0) return FailedPrecondition("descriptors before attach");
    {
      std::lock_guard lock(mutex_);
      orphans_possible_ = true;
    }
    const Status added = control_.AddTransfer(connection.session_id, message.transfer(), std::move(fds));
    // Contradicting parts are reported to the call that claims the transfer; the session continues.
    return added.code() == Code::kUnavailable || added.code() == Code::kNotFound ? added : Status::Ok();
  }
  return InvalidArgument("the lease message has no known content");
}

Status LeaseServer::LetGo(Connection& connection, const v1::CheckpointRequest& request) {
  if (connection.session_id == 0) return FailedPrecondition("a checkpoint before attach");
  TANDEM_RETURN_IF_ERROR(control_.LetGo(connection.session_id, request.secret()));
  v1::LeaseMessage answer;
  answer.mutable_checkpointed();
  std::shared_ptr<Connection> over;
  std::lock_guard lock(mutex_);
  (void)SendLocked(connection, {answer.SerializeAsString(), {}});
  // Nobody watches its process from here on. A restored process makes another lease.
  by_session_.erase(connection.session_id);
  connection.session_id = 0;
  if (const auto found = connections_.find(connection.id); found != connections_.end()) over = Forget(found);
  ::shutdown(connection.socket.get(), SHUT_WR);
  return Status::Ok();
}

Status LeaseServer::SendLocked(Connection& connection, Packet packet) {
  if (connection.backlog.empty()) {
    std::vector<int> raw;
    for (const SharedFd& fd : packet.fds) raw.push_back(fd->get());
    Status sent = SendMessage(connection.socket.get(), packet.body, raw, false);
    if (sent.code() != Code::kResourceExhausted) return sent;
  }
  if (connection.backlog.size() >= options_.max_backlog) {
    return Status(Code::kResourceExhausted, "the client does not read its lease socket",
                  {.reason = "BACKLOG",
                   .who = {},
                   .field = {},
                   .limit = static_cast<long long>(options_.max_backlog),
                   .usage = static_cast<long long>(connection.backlog.size())});
  }
  connection.backlog.push_back(std::move(packet));
  Watch(connection.socket.get(), Tag(connection.id, kSocket), EPOLLIN | EPOLLRDHUP | EPOLLOUT, false);
  return Status::Ok();
}

void LeaseServer::Flush(uint64_t connection_id) {
  const std::shared_ptr<Connection> connection = Find(connection_id);
  if (!connection) return;
  std::lock_guard lock(mutex_);
  while (!connection->backlog.empty()) {
    const Packet& packet = connection->backlog.front();
    std::vector<int> raw;
    for (const SharedFd& fd : packet.fds) raw.push_back(fd->get());
    if (SendMessage(connection->socket.get(), packet.body, raw, false).code() == Code::kResourceExhausted)
      return;
    connection->backlog.pop_front();
  }
  Watch(connection->socket.get(), Tag(connection->id, kSocket), EPOLLIN | EPOLLRDHUP, false);
}

Status LeaseServer::Send(uint64_t session_id, uint64_t transfer_id, const std::vector<SharedFd>& fds) {
  std::lock_guard lock(mutex_);
  auto it = by_session_.find(session_id);
  auto connection = it == by_session_.end() ? connections_.end() : connections_.find(it->second);
  if (connection == connections_.end()) return Unavailable("the session's lease has ended");
  for (size_t first = 0; first < fds.size(); first += kMaxFdsPerMessage) {
    v1::LeaseMessage message;
    message.mutable_transfer()->set_transfer_id(transfer_id);
    message.mutable_transfer()->set_index(static_cast<uint32_t>(first));
    message.mutable_transfer()->set_total(static_cast<uint32_t>(fds.size()));
    const size_t end = std::min(first + kMaxFdsPerMessage, fds.size());
    Packet packet{message.SerializeAsString(),
                  {fds.begin() + static_cast<ptrdiff_t>(first), fds.begin() + static_cast<ptrdiff_t>(end)}};
    TANDEM_RETURN_IF_ERROR(SendLocked(*connection->second, std::move(packet)));
  }
  return Status::Ok();
}

void LeaseServer::Refuse(Connection& connection, const Status& why) {
  v1::LeaseMessage message;
  FillStatusDetail(why, message.mutable_refused());
  SendMessage(connection.socket.get(), message.SerializeAsString(), {}, false).ok();
}

void LeaseServer::Close(uint64_t session_id, const Status& why) {
  std::shared_ptr<Connection> closed;
  std::lock_guard lock(mutex_);
  auto it = by_session_.find(session_id);
  if (it == by_session_.end()) return;
  auto connection = connections_.find(it->second);
  if (connection != connections_.end()) {
    // Behind what the client has not read yet: the socket keeps the order, and a full one loses the reason
    // only.
    if (!why.ok()) Refuse(*connection->second, why);
    closed = Forget(connection);
    ::shutdown(closed->socket.get(), SHUT_RDWR);
  }
  by_session_.erase(it);
}

void LeaseServer::Drop(uint64_t connection_id, const std::string& why, bool closed) {
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    auto it = connections_.find(connection_id);
    if (it == connections_.end()) return;
    connection = Forget(it);
    by_session_.erase(connection->session_id);
  }
  if (connection->session_id == 0) return;
  if (closed && ProcessLives(connection->peer.pid, connection->pidfd)) {
    control_.LeaseClosed(connection->session_id);
  } else {
    control_.SessionLost(connection->session_id, why);
  }
}

void LeaseServer::DropLate() {
  std::vector<uint64_t> late, away;
  const auto now = Waiter::Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (connections_.size() == by_session_.size() && awaited_ == 0) return;
    for (const auto& [id, connection] : connections_) {
      const auto age = now - connection->since;
      if (connection->session_id == 0 && age >= options_.attach_deadline) late.push_back(id);
      if (connection->awaited && age >= options_.restart_grace) away.push_back(id);
    }
  }
  for (uint64_t id : late) Drop(id, "it did not attach in time");
  for (uint64_t id : away) Drop(id, "it did not come back in time after a restart of tandemd");
}

}  // namespace tandem::daemon
