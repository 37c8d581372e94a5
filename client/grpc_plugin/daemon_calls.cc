#include "client/grpc_plugin/daemon_calls.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace tandem::client {
namespace {

// In which a daemon that has answered at its lease's socket takes a connection for calls.
constexpr std::chrono::seconds kConnectTime{5};

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Sockets of this process whose other end has that file's name: a daemon may know its folder by another path.
size_t ConnectionsTo(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  std::error_code failed;
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", failed)) {
    sockaddr_un peer{};
    socklen_t length = sizeof(peer) - 1;
    const int fd = std::atoi(entry.path().filename().c_str());
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.sun_family != AF_UNIX)
      continue;
    if (std::filesystem::path(peer.sun_path).filename().string() == name) ++count;
  }
  return count;
}

}  // namespace

void DaemonCalls::Open(const std::string& token, const std::string& address, const std::string& grpc_socket) {
  address_ = address;
  grpc_socket_ = grpc_socket;
  std::lock_guard lock(stub_mutex_);
  token_ = Hex(token);
  open_ = true;
  stub_ = MakeStub();
}

Status DaemonCalls::Disconnect(Clock::time_point deadline) {
  // Other sessions of the process have connections of their own.
  const size_t before = ConnectionsTo(grpc_socket_);
  {
    std::lock_guard lock(stub_mutex_);
    open_ = false;
    stub_ = nullptr;
  }
  // gRPC closes a connection on another thread.
  while (before > 0 && ConnectionsTo(grpc_socket_) >= before) {
    if (Clock::now() >= deadline) return DeadlineExceeded("gRPC keeps its connection to " + grpc_socket_);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Status::Ok();
}

void DaemonCalls::Reconnect(const std::string& token) {
  std::lock_guard lock(stub_mutex_);
  token_ = Hex(token);
  open_ = true;
}

std::shared_ptr<DaemonCalls::Stub> DaemonCalls::MakeStub() const {
  grpc::ChannelArguments arguments;
  // Sessions are not to share a connection, nor to be slow to see a daemon that has come back.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Also the time that one attempt gets: a busy node may take long to answer, a dead daemon's socket refuses
  // at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel("unix:" + grpc_socket_, grpc::InsecureChannelCredentials(), arguments);
  // gRPC takes a socket whose queue of connections is full for a connected one, and fails the first call. Beside a
  // flood of connections only a further try gets through.
  channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTime);
  return v1::Tandem::NewStub(channel);
}

void DaemonCalls::AwaitAnswer(Stub& stub) {
  grpc::ClientContext context;
  context.AddMetadata("tandem-token", token());
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  v1::CloseChannelRequest nobodys;  // id 0: an answer about it is an answer
  v1::CloseChannelReply reply;
  (void)stub.CloseChannel(&context, nobodys, &reply);
}

std::shared_ptr<DaemonCalls::Stub> DaemonCalls::StubOf(uint64_t daemon) {
  std::lock_guard lock(stub_mutex_);
  if (open_ && (stub_ == nullptr || daemon != stub_daemon_)) {
    stub_ = MakeStub();
    stub_daemon_ = daemon;
  }
  return stub_;
}

}  // namespace tandem::client
