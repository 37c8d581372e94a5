#include "daemon/main/peer_listener.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/log.h"

namespace tandem::daemon {
namespace {

constexpr size_t kMaxCommand = 256;

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

PeerListener::PeerListener(std::string path, UniqueFd socket, grpc::Server* server)
    : path_(std::move(path)), socket_(std::move(socket)), server_(server), thread_([this] { Serve(); }) {}

PeerListener::~PeerListener() { Close(); }

void PeerListener::Close() {
  if (!thread_.joinable()) return;
  ::shutdown(socket_.get(), SHUT_RDWR);  // accept returns
  thread_.join();
  ::unlink(path_.c_str());
}

Result<std::unique_ptr<PeerListener>> PeerListener::Start(const std::string& path, grpc::Server* server) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument("the path " + path + " is too long for a socket");
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError("socket", errno);
  const mode_t before = ::umask(0177);
  const int bound = ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(before);
  if (bound != 0) return SystemError("bind " + path, error);
  if (::listen(socket.get(), SOMAXCONN) != 0) return SystemError("listen " + path, errno);
  return std::unique_ptr<PeerListener>(new PeerListener(path, std::move(socket), server));
}

void PeerListener::Serve() {
  for (;;) {
    const int connection = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) {
      if (errno == EINVAL || errno == EBADF) return;  // shut down
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until somebody closes something
      continue;
    }
    {
      // A descriptor's number is its connection's until gRPC closes it: the entry is replaced by the next
      // one.
      std::lock_guard<std::mutex> lock(mutex_);
      callers_["fd:" + std::to_string(connection)] = IdentifyCaller(connection);
    }
    grpc::AddInsecureChannelFromFd(server_, connection);
  }
}

std::optional<Caller> PeerListener::CallerOf(const std::string& peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = callers_.find(peer);
  return found == callers_.end() ? std::nullopt : found->second;
}

}  // namespace tandem::daemon
