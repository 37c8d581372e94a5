// The services of clients: sessions, descriptors, limits and events, as calls over the sockets have them.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd_socket.h"
#include "daemon/control/tests/lingering_socket.h"
#include "daemon/service/tests/service_fixture.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ends what is late within the test. A client that is stopped for a moment is not late yet.
class LateServiceTest : public ServiceTest {
 protected:
  void SetUp() override { Begin(std::chrono::seconds(3), std::chrono::seconds(3)); }
};

TEST_F(ServiceTest, AttachJoinAndMeetOverRealSockets) {
  std::vector<ServiceClient> clients;
  for (int i = 0; i < 2; ++i) {
    auto client = Connect();
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    EXPECT_EQ(client->attached.gpus_size(), 4);
    EXPECT_EQ(client->attached.grpc_socket(), directory + "/client.sock");
    clients.push_back(std::move(*client));
  }
  EXPECT_EQ(control->SnapshotSessions()[0].pid, ::getpid());
  auto groups = Together(2, [&](int rank) {
    v1::JoinGroupReply reply;
    auto context = clients[size_t(rank)].Context();
    grpc::Status status = clients[size_t(rank)].stub->JoinGroup(context.get(), JoinRequest(2, rank), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  });
  EXPECT_EQ(groups[0].group_id(), groups[1].group_id());
  auto sizes = Together(2, [&](int rank) {
    const ServiceClient& client = clients[size_t(rank)];
    v1::EmptyRequest empty;
    empty.mutable_spec()->add_shape(100);
    empty.set_gpu_uuid(client.attached.gpus(rank).uuid());
    v1::EmptyReply tensor;
    EXPECT_TRUE(client.stub->Empty(client.Context().get(), empty, &tensor).ok());
    v1::RendezvousRequest meet;
    meet.set_tensor_id(tensor.tensor_id());
    meet.set_group_id(groups[0].group_id());
    v1::RendezvousReply reply;
    grpc::Status status = client.stub->Rendezvous(client.Context().get(), meet, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return ReceiveFds(client, reply.transfer_id());
  });
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 2}));
  v1::DetachReply detached;
  for (const ServiceClient& client : clients) {
    EXPECT_TRUE(client.stub->Detach(client.Context().get(), {}, &detached).ok());
  }
  EXPECT_EQ(control->Snapshot().sessions, 0u);
}

TEST_F(ServiceTest, TokensAreCheckedAndErrorsCarryTheirDetail) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  v1::FreeRequest request;
  v1::FreeReply reply;
  const auto reason = [&](std::unique_ptr<grpc::ClientContext> context) {
    const grpc::Status status = client->stub->Free(context.get(), request, &reply);
    return std::to_string(status.error_code()) + " " + DetailOf(*context).reason();
  };
  EXPECT_EQ(reason(std::make_unique<grpc::ClientContext>()), "16 NO_TOKEN");
  EXPECT_EQ(reason(client->Context("short")), "16 BAD_TOKEN");
  EXPECT_EQ(reason(client->Context(std::string(16, 'f'))), "16 SESSION_LOST");
  auto context = client->Context();
  request.set_tensor_id(77);
  EXPECT_EQ(client->stub->Free(context.get(), request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailOf(*context).code(), static_cast<int>(Code::kNotFound));
  EXPECT_THAT(DetailOf(*context).message(), HasSubstr("no tensor 77"));
}

TEST_F(ServiceTest, AKilledProcessIsSeenWithinASecond) {
  auto survivor = Connect();
  ASSERT_TRUE(survivor.ok());
  // The child attaches by itself, so that the kernel names its pid; it uses no gRPC.
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto lease = ConnectSeqpacket(directory + "/lease.sock");
    v1::LeaseMessage message;
    message.mutable_attach()->set_protocol_min(kProtocol);
    message.mutable_attach()->set_protocol_max(kProtocol);
    if (!lease.ok() || !SendMessage(lease->get(), message.SerializeAsString()).ok()) ::_exit(1);
    if (!ReceiveMessage(lease->get()).ok() || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(control->Snapshot().sessions, 2u);
  EXPECT_EQ(control->SnapshotSessions()[1].pid, child);
  // Stopped, it disturbs nobody.
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  ASSERT_TRUE(Connect().ok());
  const auto before = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] {
    for (const auto& session : control->SnapshotSessions()) {
      if (session.pid == child) return false;
    }
    return true;
  }));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 1u);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// A process that ends without Detach is lost, however it ends; one that closes its lease and lives on has
// left.
TEST_F(ServiceTest, ALeaseThatALivingProcessClosesIsNotLost) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto lease = ConnectSeqpacket(directory + "/lease.sock");
    v1::LeaseMessage message;
    message.mutable_attach()->set_protocol_min(kProtocol);
    message.mutable_attach()->set_protocol_max(kProtocol);
    if (!lease.ok() || !SendMessage(lease->get(), message.SerializeAsString()).ok()) ::_exit(1);
    ::_exit(ReceiveMessage(lease->get()).ok() ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(Eventually([&] { return control->Snapshot().sessions_lost_total == 1; }));

  std::vector<ServiceClient> clients;
  std::vector<SessionRef> sessions;
  for (int i = 0; i < 2; ++i) {
    auto client = Connect();
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    sessions.push_back(*control->Authenticate(client->attached.token()));
    clients.push_back(std::move(*client));
  }
  Join(sessions);
  clients[1].lease.Reset();
  const auto event = NextOfKind(sessions[0], v1::Event::RANK_LEFT);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_EQ(event->rank(), 1);
  EXPECT_TRUE(Eventually([&] { return control->Snapshot().sessions == 1; }));
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 1u);
  EXPECT_EQ(control->Snapshot().groups_broken_total, 0u);
}

TEST_F(ServiceTest, AnEvictedClientGetsTheReasonByItsLeaseAndItsCalls) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(control->Evict(client->attached.session_id(), "uid 0").ok());
  auto last = ReceiveMessage(client->lease.get());
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  v1::LeaseMessage message;
  ASSERT_TRUE(message.ParseFromString(last->body));
  EXPECT_EQ(message.refused().reason(), "EVICTED");
  EXPECT_THAT(message.refused().message(), HasSubstr("evicted by uid 0"));
  EXPECT_EQ(ReceiveMessage(client->lease.get()).status().detail().reason, "EOF");
  auto context = client->Context();
  v1::FreeReply reply;
  EXPECT_EQ(client->stub->Free(context.get(), {}, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(DetailOf(*context).reason(), "EVICTED");
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 0u);
}

TEST_F(ServiceTest, TheCauseOfAFailedJoinComesAsFields) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  auto context = client->Context();
  v1::JoinGroupRequest request = JoinRequest(3, 2);
  request.set_gpu_uuid("GPU-none");
  v1::JoinGroupReply reply;
  EXPECT_EQ(client->stub->JoinGroup(context.get(), request, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
  v1::StatusDetail detail = DetailOf(*context);
  EXPECT_THAT(detail.ranks(), ElementsAre(2));
  EXPECT_EQ(detail.pid(), ::getpid());
  EXPECT_FALSE(detail.has_gpu());
  engines->HoldDown(3);
  context = client->Context();
  request = JoinRequest(4, 3);
  EXPECT_EQ(client->stub->JoinGroup(context.get(), request, &reply).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  detail = DetailOf(*context);
  EXPECT_EQ(detail.gpu(), 3);
  EXPECT_EQ(detail.who(), "gpu 3");
  EXPECT_FALSE(detail.has_started());
}

TEST_F(LateServiceTest, BadLeaseMessagesEndTheirOwnLeaseOnly) {
  auto good = Connect();
  ASSERT_TRUE(good.ok());
  const size_t descriptors = OpenDescriptors();
  for (const std::string& body : {std::string("garbage"), std::string(), std::string(40000, '\xff')}) {
    auto lease = ConnectSeqpacket(directory + "/lease.sock");
    ASSERT_TRUE(lease.ok());
    ASSERT_TRUE(SendMessage(lease->get(), body).ok());
    auto answer = ReceiveMessage(lease->get());
    ASSERT_TRUE(answer.ok());
    v1::LeaseMessage message;
    ASSERT_TRUE(message.ParseFromString(answer->body));
    EXPECT_EQ(message.refused().code(), static_cast<int>(Code::kInvalidArgument));
    EXPECT_EQ(ReceiveMessage(lease->get()).status().detail().reason, "EOF");
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; }));
  // One that never attaches is closed.
  auto silent = ConnectSeqpacket(directory + "/lease.sock");
  ASSERT_TRUE(silent.ok());
  EXPECT_EQ(ReceiveMessage(silent->get()).status().detail().reason, "EOF");
  v1::EmptyRequest empty;
  empty.mutable_spec()->add_shape(1);
  empty.set_gpu_uuid(good->attached.gpus(0).uuid());
  v1::EmptyReply reply;
  EXPECT_TRUE(good->stub->Empty(good->Context().get(), empty, &reply).ok());
}

TEST_F(LateServiceTest, DescriptorsAreClaimedOrReaped) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  // The channel's own descriptors belong to the baseline.
  v1::FreeReply none;
  client->stub->Free(client->Context().get(), {}, &none);
  const size_t descriptors = OpenDescriptors();
  auto memfd = CreateSealedMemfd("own", 4096);
  ASSERT_TRUE(memfd.ok());
  v1::LeaseMessage message;
  message.mutable_transfer()->set_transfer_id(5);
  message.mutable_transfer()->set_total(1);
  ASSERT_TRUE(SendMessage(client->lease.get(), message.SerializeAsString(), {memfd->get()}).ok());
  v1::RegisterTensorRequest request;
  request.set_gpu_uuid(client->attached.gpus(0).uuid());
  request.set_bytes(4096);
  request.add_chunk_bytes(4096);
  request.set_transfer_id(5);
  v1::RegisterTensorReply reply;
  grpc::Status status = client->stub->RegisterTensor(client->Context().get(), request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  v1::DeregisterRequest deregister;
  deregister.set_registration_id(reply.registration_id());
  v1::DeregisterReply done;
  EXPECT_TRUE(client->stub->Deregister(client->Context().get(), deregister, &done).ok());
  // An orphan is closed after its time, 3000 at once are refused by name.
  message.mutable_transfer()->set_transfer_id(6);
  ASSERT_TRUE(SendMessage(client->lease.get(), message.SerializeAsString(), {memfd->get()}).ok());
  message.mutable_transfer()->set_transfer_id(7);
  message.mutable_transfer()->set_total(3000);
  ASSERT_TRUE(SendMessage(client->lease.get(), message.SerializeAsString(), {memfd->get()}).ok());
  request.set_transfer_id(7);
  auto context = client->Context();
  EXPECT_EQ(client->stub->RegisterTensor(context.get(), request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf(*context).reason(), "TOO_MANY_DESCRIPTORS");
  memfd->Reset();
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; }));
}

TEST_F(ServiceTest, AClientThatDoesNotReadFillsItsOwnBacklogOnly) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  const SharedFd fd = std::make_shared<const UniqueFd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Status status;
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 100000 && status.ok(); ++i) {
    status = leases->Send(client->attached.session_id(), static_cast<uint64_t>(i), {fd});
  }
  EXPECT_EQ(status.detail().reason, "BACKLOG") << status.ToString();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
  // Accepted messages arrive in order once the client reads again.
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(ReceiveFds(*client, i), 1u);
  EXPECT_TRUE(Connect().ok());
}

TEST_F(ServiceTest, ACancelledCallStopsWaiting) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  auto context = client->Context();
  auto call = std::async(std::launch::async, [&] {
    v1::JoinGroupReply reply;
    return client->stub->JoinGroup(context.get(), JoinRequest(2, 0), &reply).error_code();
  });
  ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
  context->TryCancel();
  EXPECT_EQ(call.get(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return control->SnapshotGroups().empty(); }));
}

// Descriptors whose close lasts: with a message that is refused, before attach, behind a transfer that nobody
// claims, unread.
TEST_F(LateServiceTest, DescriptorsThatLingerHoldNobodyUp) {
  const auto hostile = Connect();
  ASSERT_TRUE(hostile.ok());
  std::vector<LingeringSocket> sockets;
  const auto send = [&](int lease, const std::string& body, size_t copies = 1) {
    LingeringSocket& socket = sockets.emplace_back(std::chrono::seconds(40));
    const Status sent = SendMessage(lease, body, std::vector<int>(copies, socket.end.get()));
    if (sent.ok()) socket.end.Reset();  // the daemon has the last ones
    return sent.ok();
  };
  v1::LeaseMessage transfer;
  transfer.mutable_transfer()->set_transfer_id(1);
  transfer.mutable_transfer()->set_total(1);
  EXPECT_TRUE(send(hostile->lease.get(), transfer.SerializeAsString()));
  transfer.mutable_transfer()->set_total(1000);
  EXPECT_TRUE(send(hostile->lease.get(), transfer.SerializeAsString()));
  auto garbage = ConnectSeqpacket(directory + "/lease.sock"),
       early = ConnectSeqpacket(directory + "/lease.sock");
  ASSERT_TRUE(garbage.ok() && early.ok());
  EXPECT_TRUE(send(garbage->get(), "garbage", kMaxFdsPerMessage));
  send(garbage->get(), "never read");  // unless the daemon was faster
  EXPECT_TRUE(send(early->get(), transfer.SerializeAsString()));
  const auto start = Waiter::Clock::now();
  ASSERT_TRUE(Connect().ok());
  std::this_thread::sleep_for(std::chrono::seconds(4));  // orphans are closed after three
  EXPECT_TRUE(Eventually([&] {                           // the other's has ended with its handle
    return control->SnapshotSessions().size() == 1;
  }));
  ASSERT_TRUE(Connect().ok());
  EXPECT_LT(Waiter::Clock::now() - start, std::chrono::seconds(20));
}

TEST_F(ServiceTest, ConnectionsThatNeverAttachKeepNobodyOut) {
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(std::move(*ConnectSeqpacket(directory + "/lease.sock")));
    ASSERT_TRUE(Eventually([&] { return leases->connections() == std::min<size_t>(idle.size(), 8); }));
  }
  // The oldest went for the newer ones, before it was late.
  EXPECT_EQ(ReceiveMessage(idle.front().get()).status().detail().reason, "EOF");
  EXPECT_TRUE(Connect().ok());
}

TEST_F(ServiceTest, CallsUnderWayAreLimited) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  std::vector<std::future<grpc::StatusCode>> calls;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < 16; ++i) {
    contexts.push_back(client->Context());
    calls.push_back(std::async(std::launch::async, [&, i] {
      v1::JoinGroupReply reply;
      return client->stub
          ->JoinGroup(contexts[static_cast<size_t>(i)].get(), JoinRequest(2, 0, std::to_string(i)), &reply)
          .error_code();
    }));
  }
  ASSERT_TRUE(Eventually([&] { return control->SnapshotGroups().size() == 16; }));
  auto context = client->Context();
  v1::JoinGroupReply reply;
  EXPECT_EQ(client->stub->JoinGroup(context.get(), JoinRequest(2, 0, "one more"), &reply).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf(*context).reason(), "QUOTA_CALLS");
  for (auto& waiting : contexts) waiting->TryCancel();
  for (auto& call : calls) EXPECT_EQ(call.get(), grpc::StatusCode::CANCELLED);
  context = client->Context();
  v1::EmptyRequest empty;
  v1::EmptyReply made;
  empty.mutable_spec()->add_shape(1);
  empty.mutable_spec()->set_dtype(static_cast<uint32_t>(DType::kU8));
  empty.set_gpu_uuid(client->attached.gpus(0).uuid());
  EXPECT_TRUE(Eventually([&] {
    auto again = client->Context();
    return client->stub->Empty(again.get(), empty, &made).ok();
  }));
}

TEST_F(ServiceTest, EventsStreamUntilTheSessionEnds) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  auto context = client->Context();
  auto reader = client->stub->Events(context.get(), {});
  reader->WaitForInitialMetadata();
  control->SetAdmission(Admission::kDraining);
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::Event::DRAINING);
  EXPECT_EQ(Connect().status().code(), Code::kUnavailable);
  client->lease.Reset();
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServiceTest, ANewStreamOfEventsTakesThePlaceOfTheOldOne) {
  auto client = Connect();
  ASSERT_TRUE(client.ok());
  auto old_context = client->Context(), new_context = client->Context();
  auto old_reader = client->stub->Events(old_context.get(), {});
  old_reader->WaitForInitialMetadata();
  auto new_reader = client->stub->Events(new_context.get(), {});
  new_reader->WaitForInitialMetadata();
  v1::Event event;
  EXPECT_FALSE(old_reader->Read(&event));
  EXPECT_EQ(old_reader->Finish().error_code(), grpc::StatusCode::ABORTED);
  control->SetAdmission(Admission::kDraining);
  ASSERT_TRUE(new_reader->Read(&event));
  EXPECT_EQ(event.kind(), v1::Event::DRAINING);
  new_context->TryCancel();
}

}  // namespace
}  // namespace tandem::daemon
