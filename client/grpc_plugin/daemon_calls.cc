#include "client/grpc_plugin/daemon_calls.h"

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

}  // namespace

void DaemonCalls::Open(const std::string& token, const std::string& address, const std::string& grpc_socket) {
  token_ = Hex(token);
  address_ = address;
  grpc_socket_ = grpc_socket;
  std::lock_guard lock(stub_mutex_);
  stub_ = MakeStub();
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

void DaemonCalls::AwaitAnswer(Stub& stub) const {
  grpc::ClientContext context;
  context.AddMetadata("tandem-token", token_);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  v1::CloseChannelRequest nobodys;  // id 0: an answer about it is an answer
  v1::CloseChannelReply reply;
  (void)stub.CloseChannel(&context, nobodys, &reply);
}

std::shared_ptr<DaemonCalls::Stub> DaemonCalls::StubOf(uint64_t daemon) {
  std::lock_guard lock(stub_mutex_);
  if (stub_ != nullptr && daemon != stub_daemon_) {
    stub_ = MakeStub();
    stub_daemon_ = daemon;
  }
  return stub_;
}

}  // namespace tandem::client
