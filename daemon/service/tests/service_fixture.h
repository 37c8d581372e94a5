// File: service_fixture.h
//
// The clients' sockets for real: gRPC and leases over Unix sockets, in one process, over fake engines.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/fd_socket.h"
#include "daemon/control/tests/control_fixture.h"
#include "daemon/service/lease_server.h"
#include "daemon/service/status_codec.h"
#include "daemon/service/tandem_service.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::daemon {

inline std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char c : bytes) {
    text += kDigits[c >> 4];
    text += kDigits[c & 15];
  }
  return text;
}

// A client as the library is one: a lease and a stub.
struct ServiceClient {
  UniqueFd lease;
  v1::AttachReply attached;
  std::unique_ptr<v1::Tandem::Stub> stub;

  std::unique_ptr<grpc::ClientContext> Context(const std::string& token = {}) const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("tandem-token", Hex(token.empty() ? attached.token() : token));
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    return context;
  }
};

inline v1::StatusDetail DetailOf(const grpc::ClientContext& context) {
  v1::StatusDetail detail;
  auto it = context.GetServerTrailingMetadata().find(kStatusTrailer);
  if (it != context.GetServerTrailingMetadata().end()) {
    detail.ParseFromString(std::string(it->second.data(), it->second.size()));
  }
  return detail;
}

class ServiceTest : public ControlTest {
 protected:
  void SetUp() override { Begin(kWaitBudget, kWaitBudget); }
  // The times after which leases that do not attach end, and transfers that nobody claims.
  void Begin(std::chrono::milliseconds attach_deadline, std::chrono::milliseconds orphan_deadline) {
    char name[] = "/tmp/tandem-service-XXXXXX";
    directory = ::mkdtemp(name);
    ControlOptions options;
    options.grpc_socket = directory + "/client.sock";
    options.orphan_deadline = orphan_deadline;
    options.limits.calls_per_session = 16;
    Start(4, options);
    LeaseServerOptions lease_options;
    lease_options.path = directory + "/lease.sock";
    lease_options.mode = 0600;
    lease_options.attach_deadline = attach_deadline;
    lease_options.max_backlog = 8;
    lease_options.max_unattached = 8;
    auto started = LeaseServer::Start(lease_options, *control);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    leases = std::move(*started);
    service = std::make_unique<TandemService>(*control);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + options.grpc_socket, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.RegisterService(service.get());
    server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    channel = grpc::CreateChannel("unix:" + options.grpc_socket, grpc::InsecureChannelCredentials());
  }
  void TearDown() override {
    control->Stop();
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    leases.reset();
    control.reset();
    std::filesystem::remove_all(directory);
  }

  Result<ServiceClient> Connect() {
    ServiceClient client;
    TANDEM_ASSIGN_OR_RETURN(client.lease, ConnectSeqpacket(directory + "/lease.sock"));
    v1::LeaseMessage message;
    message.mutable_attach()->set_protocol_min(kProtocol);
    message.mutable_attach()->set_protocol_max(kProtocol);
    TANDEM_RETURN_IF_ERROR(SendMessage(client.lease.get(), message.SerializeAsString()));
    TANDEM_ASSIGN_OR_RETURN(FdMessage answer, ReceiveMessage(client.lease.get()));
    if (!message.ParseFromString(answer.body)) return Internal("malformed answer");
    if (message.has_refused())
      return Status(static_cast<Code>(message.refused().code()), message.refused().message());
    client.attached = message.attached();
    client.stub = v1::Tandem::NewStub(channel);
    return client;
  }
  // Reads the next transfer; the descriptors that came with it.
  size_t ReceiveFds(const ServiceClient& client, uint64_t transfer_id) {
    auto message = ReceiveMessage(client.lease.get());
    v1::LeaseMessage parsed;
    if (!message.ok() || !parsed.ParseFromString(message->body)) return 0;
    return parsed.transfer().transfer_id() == transfer_id ? message->fds.size() : 0;
  }

  std::string directory;
  std::unique_ptr<LeaseServer> leases;
  std::unique_ptr<TandemService> service;
  std::unique_ptr<grpc::Server> server;
  std::shared_ptr<grpc::Channel> channel;
};

}  // namespace tandem::daemon
