#include "client/tandemctl/connection.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "common/unique_fd.h"

namespace tandem::ctl {
namespace {

// Says why a socket cannot be used better than gRPC would, and at once where nobody listens.
Status Probe(const std::string& path, std::chrono::milliseconds timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument("the path " + path + " is too long for a socket");
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError("socket", errno);
  const timeval longest{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest));
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
    return Status::Ok();
  if (errno == EACCES || errno == EPERM) {
    return PermissionDenied("this user may not use " + path + " (group of the socket, or root)");
  }
  return Status(Code::kUnavailable, "no daemon answers at " + path + ": " + std::strerror(errno),
                StatusDetail{"UNREACHABLE", path, "", 0, 0});
}

Result<std::shared_ptr<grpc::Channel>> Dial(const std::string& path, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::system_clock::now() + timeout;
  TANDEM_RETURN_IF_ERROR(Probe(path, timeout));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      32 << 20);  // all replies but traces are below gRPC's own 4 MiB; a trace has up to 16
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  auto channel = grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
  // gRPC takes a socket whose queue of connections is full for a connected one, and fails the call. Beside a flood
  // of connections only a further try gets through.
  channel->WaitForConnected(end);
  return channel;
}

}  // namespace

Connection::Connection(std::string runtime_dir, std::string admin_dir, std::chrono::milliseconds timeout)
    : runtime_dir_(std::move(runtime_dir)), admin_dir_(std::move(admin_dir)), timeout_(timeout) {
  if (!admin_dir_.empty()) return;
  admin_dir_ = runtime_dir_.substr(0, runtime_dir_.find_last_not_of('/') + 1) + "-admin";
}

ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk: return kDone;
    case Code::kInvalidArgument:
    case Code::kOutOfRange: return kUsage;
    case Code::kUnavailable: return kUnreachable;
    case Code::kNotFound: return kNotFoundExit;
    case Code::kPermissionDenied:
    case Code::kUnauthenticated: return kNotPermitted;
    case Code::kDeadlineExceeded: return kTimedOut;
    default: return kFailed;
  }
}

Result<std::unique_ptr<admin::v1::Admin::Stub>> Connection::Reader() const {
  TANDEM_ASSIGN_OR_RETURN(auto channel, Dial(runtime_dir_ + "/client.sock", timeout_));
  return admin::v1::Admin::NewStub(channel);
}

Result<std::unique_ptr<admin::v1::AdminControl::Stub>> Connection::Changer() const {
  TANDEM_ASSIGN_OR_RETURN(auto channel, Dial(admin_dir_ + "/admin.sock", timeout_));
  return admin::v1::AdminControl::NewStub(channel);
}

}  // namespace tandem::ctl
