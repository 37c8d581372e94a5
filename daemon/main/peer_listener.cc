#include "daemon/main/peer_listener.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/log_share.h"
#include "daemon/control/base/ledger.h"
#include "daemon/service/peer_identity.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxCommand = 256;
constexpr int kAcceptsInARow = 256;  // then the ends of connections are looked at
// Data of epoll's events that are not the id of a connection.
constexpr uint64_t kListening = UINT64_MAX, kWake = UINT64_MAX - 1;
// Until sessions that have ended are noticed, and descriptors that gRPC has closed.
constexpr std::chrono::milliseconds kSweepInterval{1000};

// The command line of a process, its arguments parted by spaces.
std::string CommandOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::string text;
  for (char c; text.size() < kMaxCommand && file.get(c);) text += c == 0 ? ' ' : c;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return log::OneLine(text);
}

// The kernel lists a process's pid in each namespace from the reader's own inwards.
bool IsInOwnNamespace(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("NSpid:")) continue;
    std::istringstream numbers(line.substr(6));
    int count = 0;
    for (int number; numbers >> number;) ++count;
    return count == 1;
  }
  return false;
}

std::vector<uint32_t> GroupsOf(int connection, uint32_t gid) {
  std::vector<gid_t> groups(64);
  for (int tries = 0; tries < 2; ++tries) {
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int error = ::getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    if (error != 0 && errno != ERANGE) bytes = 0;
    groups.resize(bytes / sizeof(gid_t));
    if (error == 0 || errno != ERANGE) break;
  }
  std::vector<uint32_t> all(groups.begin(), groups.end());
  all.push_back(gid);
  return all;
}

// The job that a process belongs to; empty if it is not known.
std::string OwnerOfProcess(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup");
  std::stringstream text;
  text << file.rdbuf();
  return OwnerOf(AccountedCgroup(text.str()));
}

void Watch(int epoll, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

SocketFileOptions FileOf(const PeerListenerOptions& options) {
  return {.path = options.path, .type = SOCK_STREAM, .mode = options.mode, .group = options.group};
}

}  // namespace

std::optional<Caller> IdentifyCaller(int connection) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return Caller{.uid = peer.uid,
                .pid = peer.pid,
                .command = peer.pid > 0 ? CommandOf(peer.pid) : "",
                .groups = GroupsOf(connection, peer.gid),
                .in_own_namespace = peer.pid > 0 && IsInOwnNamespace(peer.pid)};
}

std::string CallerText(const Caller& caller) {
  return "uid=" + std::to_string(caller.uid) + " pid=" + std::to_string(caller.pid) +
         " command=" + log::QuotedFieldValue(caller.command);
}

PeerListener::PeerListener(PeerListenerOptions options, grpc::Server* server, SocketFile file, UniqueFd epoll,
                           UniqueFd wake)
    : options_(std::move(options)),
      server_(server),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      by_owner_(options_.owner_rate),
      by_uid_(options_.uid_rate),
      file_(std::move(file)),
      table_(options_.limits) {
  Watch(epoll_.get(), file_.fd(), kListening, EPOLLIN);
  Watch(epoll_.get(), wake_.get(), kWake, EPOLLIN);
}

void PeerListener::Begin() {
  thread_ = std::thread([this] { Serve(); });
}

PeerListener::~PeerListener() { Close(); }

void PeerListener::Close() {
  closing_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  std::lock_guard<std::mutex> lock(mutex_);
  file_.Unlink();
  file_ = SocketFile();
}

Result<std::unique_ptr<PeerListener>> PeerListener::Start(PeerListenerOptions options, grpc::Server* server,
                                                          Status* group_missing) {
  TANDEM_ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(FileOf(options)));
  if (group_missing != nullptr) *group_missing = file.group_missing();
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return SystemError("epoll_create1 or eventfd", errno);
  return std::unique_ptr<PeerListener>(
      new PeerListener(std::move(options), server, std::move(file), std::move(epoll), std::move(wake)));
}

Result<bool> PeerListener::Mend() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (file_.IsThere()) return false;
  }
  TANDEM_ASSIGN_OR_RETURN(SocketFile file, SocketFile::Listen(FileOf(options_)));
  std::lock_guard<std::mutex> lock(mutex_);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, file_.fd(), nullptr);
  file_ = std::move(file);
  Watch(epoll_.get(), file_.fd(), kListening, EPOLLIN);
  return true;
}

void PeerListener::Serve() {
  std::array<epoll_event, 64> events;
  auto swept = std::chrono::steady_clock::now();
  while (!closing_) {
    bool idle = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      idle = connections_.empty();
    }
    const int timeout = idle ? -1 : static_cast<int>(kSweepInterval.count());
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    bool ended = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kListening) {
        // A full queue of connections makes others fail, so it is emptied faster than anybody can fill it.
        for (int more = kAcceptsInARow; more > 0 && Accept(); --more) continue;
      } else if (id != kWake) {
        // It stays until gRPC has closed its descriptor: a call may be under way.
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = connections_.find(id);
        if (found == connections_.end()) continue;
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.own.get(), nullptr);
        ended = true;
      }
    }
    const auto now = std::chrono::steady_clock::now();
    if (!ended && now - swept < kSweepInterval) continue;
    Sweep();
    swept = now;
  }
}

bool PeerListener::Closed(const Connection& connection) {
  struct stat status;
  return ::fstat(connection.number, &status) != 0 || status.st_ino != connection.inode;
}

void PeerListener::Forget(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto name = ids_.find("fd:" + std::to_string(found->second.number));
  if (name != ids_.end() && name->second == id) ids_.erase(name);
  table_.Remove(id);
  connections_.erase(found);
}

void PeerListener::End(uint64_t id, const char* why) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (const ConnectionPeer* peer = table_.Find(id); peer != nullptr && peer->caller.has_value())
    log::Debug(CallerText(*peer->caller) + " loses a connection: " + why);
  ::shutdown(found->second.own.get(), SHUT_RDWR);  // gRPC notices, and closes its own
  table_.Remove(id);
}

void PeerListener::Sweep() {
  // Asked without the lock: a call that holds what the answer needs may ask CallerOf.
  std::set<uint64_t> sessions;
  bool asks = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asks = options_.bounded && options_.sessions && table_.has_sessions();
  }
  if (asks) sessions = options_.sessions();
  std::lock_guard<std::mutex> lock(mutex_);
  if (asks) {
    for (const uint64_t id : table_.KeepSessions(sessions)) End(id, "its session has ended");
  }
  std::vector<uint64_t> closed;
  for (const auto& [id, connection] : connections_) {
    if (Closed(connection)) closed.push_back(id);
  }
  for (const uint64_t id : closed) Forget(id);
}

bool PeerListener::Accept() {
  UniqueFd socket;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    socket = UniqueFd(::accept4(file_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  if (!socket.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until somebody closes something
    return false;
  }
  Admit(std::move(socket));
  return true;
}

void PeerListener::Admit(UniqueFd socket) {
  if (!LeavesReserve(socket.get(), options_.use)) return;
  if (options_.bounded) {
    // Before anything that costs more: a user that connects in a loop must not keep others waiting.
    ucred peer{};
    socklen_t length = sizeof(peer);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
    if (!by_uid_.Take(std::to_string(peer.uid))) return log::CountRefusal("uid=" + std::to_string(peer.uid));
  }
  ConnectionPeer peer{.caller = IdentifyCaller(socket.get())};
  if (options_.bounded && peer.caller.has_value()) {
    peer.owner = OwnerOfProcess(peer.caller->pid);
    const std::string uid = std::to_string(peer.caller->uid);
    if (!by_owner_.Take(uid + " " + peer.owner)) return log::CountRefusal("uid=" + uid);
  }
  UniqueFd own(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  struct stat status;
  if (!own.valid() || ::fstat(socket.get(), &status) != 0) return;
  const int number = socket.Release();
  TakeUp(number, status.st_ino, std::move(own), std::move(peer));
  grpc::AddInsecureChannelFromFd(server_, number);
}

void PeerListener::TakeUp(int number, uint64_t inode, UniqueFd own, ConnectionPeer peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t id = next_id_++;
  // The number is free again, so the connection that had it has been closed.
  const std::string name = "fd:" + std::to_string(number);
  if (const auto before = ids_.find(name); before != ids_.end()) Forget(before->second);
  ids_[name] = id;
  Watch(epoll_.get(), own.get(), id, 0);  // the ends alone: EPOLLHUP and EPOLLERR come unasked
  connections_[id] = {.number = number, .inode = inode, .own = std::move(own)};
  const std::optional<uint64_t> surplus = table_.Add(id, std::move(peer));
  if (options_.bounded && surplus.has_value()) End(*surplus, "others of its user wait");
}

std::optional<uint64_t> PeerListener::IdOf(const std::string& peer) const {
  const auto found = ids_.find(peer);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Caller> PeerListener::CallerOf(const std::string& peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<uint64_t> id = IdOf(peer);
  const ConnectionPeer* found = id.has_value() ? table_.Find(*id) : nullptr;
  return found == nullptr ? std::nullopt : found->caller;
}

void PeerListener::Authenticated(const std::string& peer, uint64_t session) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<uint64_t> id = IdOf(peer);
  if (!id.has_value()) return;
  if (const auto surplus = table_.Own(*id, session); surplus.has_value())
    End(*surplus, "its session has others");
}

size_t PeerListener::connections() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return connections_.size();
}

}  // namespace tandem::daemon
