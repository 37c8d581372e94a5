// tandem-test-beside-grpc: a training process with another gRPC. It serves and calls through that
// one, uses Tandem's client (whose gRPC plugin loads another copy), and serves and calls again: neither may
// disturb the other.
//   tandem-test-beside-grpc RUNTIME_DIR

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

using namespace tandem;

// The own server's health, asked over the own channel.
Status AskOwnServer(const std::string& address) {
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer request, answer;
  const grpc::Slice empty(std::string{});
  request = grpc::ByteBuffer(&empty, 1);
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return Internal("the own gRPC fails: " + status.error_message());
  return Status::Ok();
}

Status UseTandem(const std::string& runtime_dir) {
  ConnectOptions connect;
  connect.runtime_dir = runtime_dir;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Client> client, Client::Connect(connect));
  JoinOptions join;
  join.job_key = "beside-grpc-job-key";
  join.name = "beside";
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, client->JoinGroup(join));
  OpRequest request;
  request.op = Op::kEmpty;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Plan> plan, group->Prepare("empty", request));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<HostStream> stream, HostStream::Create());
  for (int i = 0; i < 100; ++i) TANDEM_RETURN_IF_ERROR(plan->Launch(stream.get(), {}));
  TANDEM_RETURN_IF_ERROR(stream->Synchronize(std::chrono::seconds(30)));
  TANDEM_RETURN_IF_ERROR(plan->Wait());
  // An error crosses the gRPC plugin too, with its detail.
  Status refused = client->Free(987654321);
  if (refused.code() != Code::kNotFound) return Internal("Free of nothing: " + refused.ToString());
  return client->Detach();
}

Status Run(const std::string& runtime_dir) {
  grpc::EnableDefaultHealthCheckService(true);
  const std::string address = "unix:" + runtime_dir + "/beside.sock";
  grpc::CallbackGenericService
      other;  // answers UNIMPLEMENTED; without a service a server has no thread that polls
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&other);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Internal("the own server does not start");
  TANDEM_RETURN_IF_ERROR(AskOwnServer(address));
  for (int round = 0; round < 3; ++round) {
    TANDEM_RETURN_IF_ERROR(UseTandem(runtime_dir));
    TANDEM_RETURN_IF_ERROR(AskOwnServer(address));
  }
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  Status status = Run(argv[1]);
  std::printf("%s, own gRPC %s\n", status.ToString().c_str(), grpc::Version().c_str());
  return status.ok() ? 0 : 1;
}
