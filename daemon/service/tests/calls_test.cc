// Calls that wait hold the server's threads: one uid's leave room for another's.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/control/tests/control_fixture.h"
#include "daemon/service/tandem_service.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kSpareThreads = 8;

class CallsTest : public ControlTest {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tandem-calls-XXXXXX";
    directory = ::mkdtemp(name);
    options.limits.sessions = options.limits.sessions_per_uid = 8;
    options.limits.calls_per_uid = 8;
    options.limits.calls_per_session = 16;
    Start(1, options);
    service = std::make_unique<TandemService>(*control);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + directory + "/client.sock", grpc::InsecureServerCredentials());
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 4);
    builder.SetResourceQuota(grpc::ResourceQuota("test").SetMaxThreads(
        static_cast<int>(MostCalls(options.limits) + kSpareThreads)));
    builder.RegisterService(service.get());
    server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    stub = v1::Tandem::NewStub(
        grpc::CreateChannel("unix:" + directory + "/client.sock", grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    control->Stop();
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    control.reset();
    std::filesystem::remove_all(directory);
  }
  // The token of a new session.
  std::string AttachAs(uint32_t uid) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    const auto reply = control->Attach({.uid = uid, .gid = 7, .pid = 1}, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? reply->token() : "";
  }
  static std::unique_ptr<grpc::ClientContext> Context(const std::string& token) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata(kTokenBinaryKey, token);
    context->set_deadline(std::chrono::system_clock::now() + kWaitBudget);
    return context;
  }

  ControlOptions options;
  std::string directory;
  std::unique_ptr<TandemService> service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<v1::Tandem::Stub> stub;
};

TEST_F(CallsTest, WaitingCallsOfOneUidLeaveThreadsToAnother) {
  struct Call {
    std::unique_ptr<grpc::ClientContext> context;
    std::future<grpc::StatusCode> code;
  };
  std::vector<Call> calls;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 4; ++i) {
    const std::string token = AttachAs(7);
    for (int j = 0; j < 16; ++j) {
      Call& call = calls.emplace_back(Call{Context(token), {}});
      call.code = std::async(std::launch::async, [this, i, j, context = call.context.get(), &refused] {
        v1::JoinGroupReply reply;
        const auto code =
            stub->JoinGroup(context, JoinRequest(2, 0, std::to_string(i) + "." + std::to_string(j)), &reply)
                .error_code();
        if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) ++refused;
        return code;
      });
    }
  }
  // Each waits for its group's other rank, or has been refused.
  EXPECT_TRUE(Eventually([&] {
    return control->SnapshotGroups().size() + static_cast<size_t>(refused.load()) == calls.size();
  }));
  const std::string other = AttachAs(8);
  for (int i = 0; i < 8; ++i) {
    const auto context = Context(other);
    v1::JoinGroupReply reply;
    const grpc::Status joined =
        stub->JoinGroup(context.get(), JoinRequest(1, 0, "own" + std::to_string(i)), &reply);
    EXPECT_TRUE(joined.ok()) << joined.error_message();
  }
  for (Call& call : calls) call.context->TryCancel();
  int cancelled = 0;
  for (Call& call : calls) cancelled += call.code.get() == grpc::StatusCode::CANCELLED ? 1 : 0;
  EXPECT_LE(cancelled, static_cast<int>(4 * kOwnCalls + options.limits.calls_per_uid));
}

}  // namespace
}  // namespace tandem::daemon
