// The next tandemd's control plane takes over what the last one has left: sessions, groups, plans and memory,
// with their ids, and engines that hold neither more nor less.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "common/process_identity.h"
#include "common/shared_memory.h"
#include "daemon/control/restart/saved_state.h"
#include "daemon/control/restart/state_records.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

constexpr int kGpus = 2;

class ControlRestartTest : public ControlTest {
 protected:
  struct Client {
    PeerIdentity peer;
    uint64_t id = 0;
    std::string token;
    SessionRef session;
  };

  void SetUp() override {
    Start(kGpus, Options());
    engines->keeps = true;
  }
  static ControlOptions Options() {
    ControlOptions options;
    options.restart_grace = std::chrono::seconds(10);
    options.topology = EmulatedTopology(kGpus);
    options.illegal_transition = [](const std::string& text) { ADD_FAILURE() << text; };
    options.journal_difference = [](const std::string& name) { ADD_FAILURE() << name; };
    return options;
  }
  // A session of a process that lives.
  Client AttachClient(int pid = ::getpid(), uint32_t protocol = kProtocol) {
    v1::AttachRequest request;
    request.set_protocol_min(protocol);
    request.set_protocol_max(protocol);
    Client client;
    client.peer = {.uid = 7, .gid = 7, .pid = pid, .start_ticks = ProcessIdentity::Of(pid).start_ticks};
    const Result<v1::AttachReply> reply = control->Attach(client.peer, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    client.id = reply->session_id();
    client.token = reply->token();
    client.session = *control->Authenticate(client.token);
    return client;
  }
  // Two ranks' clients, and their group.
  void MakeGroup() {
    for (int rank = 0; rank < kGpus; ++rank) clients.push_back(AttachClient());
    group = Join(Sessions());
    ASSERT_NE(group, 0u);
  }
  std::vector<SessionRef> Sessions() const {
    std::vector<SessionRef> sessions;
    for (const Client& client : clients) sessions.push_back(client.session);
    return sessions;
  }
  // The last tandemd leaves, and the next one comes.
  void Restart() {
    End();
    TakeOver();
    for (Client& client : clients) client.session = Return(client);
  }
  void End() {
    control->Leave();
    for (Client& client : clients) client.session.reset();
    control.reset();
  }
  void TakeOver() {
    control = std::make_unique<Control>(Options(), *engines);
    control->SetLeasePort(&lease);
    engines->listener = control.get();
    Journal next = *Journal::Open(UniqueFd(::dup(journal.get())));
    const Result<SavedState> state = ParseState(next.TakeRecords());
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    AllHoldings holdings;
    for (int gpu = 0; gpu < kGpus; ++gpu) holdings.push_back(engines->HoldingsOf(gpu));
    control->BeginAdoption();
    control->Adopt(std::move(next), *state, holdings);
  }
  Result<v1::AttachReply> Reattach(const Client& client, const PeerIdentity& peer) {
    v1::ReattachRequest request;
    request.set_token(client.token);
    request.set_session_id(client.id);
    return control->Reattach(peer, request);
  }
  SessionRef Return(const Client& client) {
    const Result<v1::AttachReply> reply = Reattach(client, client.peer);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (!reply.ok()) return nullptr;
    EXPECT_EQ(reply->session_id(), client.id);
    EXPECT_EQ(reply->token(), client.token);
    return *control->Authenticate(client.token);
  }
  uint64_t Prepare(const std::string& key) {
    auto replies = Together(kGpus, [&](int rank) {
      return control->Prepare(clients[static_cast<size_t>(rank)].session, AllReduce(group, key),
                              Waiter::For(kWaitBudget));
    });
    for (auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return replies[0].ok() ? replies[0]->plan().plan_id() : 0;
  }
  uint64_t RegisterOn(int rank) {
    v1::RegisterTensorRequest request;
    request.set_gpu_uuid(control->options().topology.gpus[static_cast<size_t>(rank)].uuid);
    request.set_bytes(4096);
    request.set_transfer_id(1);
    request.add_chunk_bytes(4096);
    std::vector<UniqueFd> fds;
    fds.push_back(*CreateSealedMemfd("memory", 4096));
    v1::FdTransfer part;
    part.set_transfer_id(1);
    part.set_total(1);
    EXPECT_TRUE(
        control->AddTransfer(clients[static_cast<size_t>(rank)].id, part, ForeignFds(std::move(fds))).ok());
    auto reply = control->RegisterTensor(clients[static_cast<size_t>(rank)].session, request,
                                         Waiter::For(kWaitBudget));
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? reply->registration_id() : 0;
  }
  uint64_t OpenChannel(int rank) {
    v1::OpenChannelRequest request;
    request.set_gpu_uuid(control->options().topology.gpus[static_cast<size_t>(rank)].uuid);
    auto reply =
        control->OpenChannel(clients[static_cast<size_t>(rank)].session, request, Waiter::For(kWaitBudget));
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? reply->channel_id() : 0;
  }
  void StepAll(v1::SuspendGroupRequest::Step step) {
    v1::SuspendGroupRequest request;
    request.set_group_id(group);
    request.set_step(step);
    const auto replies = Together(kGpus, [&](int rank) {
      return control->SuspendGroup(clients[static_cast<size_t>(rank)].session, request,
                                   Waiter::For(kWaitBudget));
    });
    for (const auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  }
  GroupSnapshot OnlyGroup() {
    const std::vector<GroupSnapshot> groups = control->SnapshotGroups();
    EXPECT_EQ(groups.size(), 1u);
    return groups.empty() ? GroupSnapshot() : groups[0];
  }

  std::vector<Client> clients;
  uint64_t group = 0;
};

TEST_F(ControlRestartTest, EverythingGoesOnWithItsIds) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  const uint64_t registration = RegisterOn(0), channel = OpenChannel(1);
  std::vector<uint64_t> tensors;
  for (int rank = 0; rank < kGpus; ++rank)
    tensors.push_back(Empty(clients[static_cast<size_t>(rank)].session, rank));
  const auto meet = [&](int rank) {
    return Rendezvous(clients[static_cast<size_t>(rank)].session, tensors[static_cast<size_t>(rank)], group,
                      Waiter::For(kWaitBudget));
  };
  const auto met = Together(kGpus, meet);
  ASSERT_TRUE(met[0].ok()) << met[0].status().ToString();
  const FakeEngines::State before = engines->Look(0);
  const ControlSnapshot counts = control->Snapshot();

  Restart();
  const ControlSnapshot now = control->Snapshot();
  EXPECT_EQ(now.sessions, counts.sessions);
  EXPECT_EQ(now.plans, counts.plans);
  EXPECT_EQ(now.tensors, counts.tensors);
  EXPECT_EQ(now.registrations, counts.registrations);
  EXPECT_EQ(now.channels, counts.channels);
  EXPECT_EQ(now.segment_bytes, counts.segment_bytes);
  EXPECT_GT(now.sessions_total, 0u);
  for (const NodeCounter& counter : kNodeCounters) {
    const uint64_t expected = counter.kept ? counts.*counter.value : 0;
    EXPECT_EQ(now.*counter.value, expected) << counter.metric;
  }
  EXPECT_EQ(now.quota_use, counts.quota_use);
  EXPECT_EQ(OnlyGroup().id, group);
  EXPECT_EQ(OnlyGroup().state, "ready");
  EXPECT_EQ(OnlyGroup().generation, 1u);
  // Old things by their ids, and new ones beside them.
  EXPECT_EQ(Prepare("ar"), plan);
  EXPECT_NE(Prepare("other"), plan);
  const auto again = Together(kGpus, meet);
  ASSERT_TRUE(again[1].ok()) << again[1].status().ToString();
  EXPECT_EQ(again[1]->registration_id(), met[1]->registration_id());
  EXPECT_EQ(again[1]->buffer_offset(), met[1]->buffer_offset());
  EXPECT_NE(RegisterOn(0), registration);
  EXPECT_TRUE(control->Deregister(clients[0].session, registration, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(control->CloseChannel(clients[1].session, channel, Waiter::For(kWaitBudget)).ok());
  const FakeEngines::State after = engines->Look(0);
  for (const uint64_t id : before.segments) EXPECT_TRUE(after.segments.contains(id)) << id;
  EXPECT_TRUE(after.plans.contains(plan));
  // And it all ends as ever.
  for (const Client& client : clients)
    EXPECT_TRUE(control->Detach(client.session, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(
      Eventually([&] { return engines->Look(0).segments.empty() && engines->Look(0).groups.empty(); }));
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  for (const auto& [quota, part] : control->Snapshot().quota_use) EXPECT_EQ(part, 0) << quota;
}

TEST_F(ControlRestartTest, ASecondRestartFindsWhatTheFirstHasTakenOver) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  for (int i = 0; i < 5; ++i) {
    Restart();
    EXPECT_EQ(Prepare("ar"), plan);
    EXPECT_NE(Prepare("extra" + std::to_string(i)), plan);
  }
  EXPECT_EQ(OnlyGroup().plans, 6u);
}

TEST_F(ControlRestartTest, APrepareWritesAsMuchHoweverManyPlansThereAre) {
  MakeGroup();
  int plans = 0;
  // The least of some: the journal is written anew at times.
  const auto bytes_of_a_prepare = [&] {
    size_t least = SIZE_MAX;
    for (int i = 0; i < 4; ++i) {
      const size_t before = FileSize(journal.get()).value();
      Prepare("plan" + std::to_string(plans++));
      least = std::min(least, FileSize(journal.get()).value() - before);
    }
    return least;
  };
  const size_t few = bytes_of_a_prepare();
  EXPECT_GT(few, 0u);
  while (plans < 100) Prepare("plan" + std::to_string(plans++));
  EXPECT_LT(bytes_of_a_prepare(), few + 200);
}

TEST_F(ControlRestartTest, APlanThatNobodyHasHeardOfDoesNotHold) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  End();
  {
    // kill -9 between the two records of a plan.
    Journal cut = *Journal::Open(UniqueFd(::dup(journal.get())));
    cut.Erase(PlanUseKey(plan));
  }
  TakeOver();
  for (Client& client : clients) client.session = Return(client);
  EXPECT_EQ(OnlyGroup().plans, 0u);
  EXPECT_GT(Prepare("ar"), plan);
}

TEST_F(ControlRestartTest, OnlyTheProcessOfASessionGetsItBack) {
  MakeGroup();
  End();
  TakeOver();
  EXPECT_EQ(control->Authenticate(clients[0].token).status().detail().reason, "RESTARTING");
  PeerIdentity other = clients[0].peer;
  other.pid += 1;
  EXPECT_EQ(Reattach(clients[0], other).status().code(), Code::kUnauthenticated);
  other = clients[0].peer;
  other.uid += 1;
  EXPECT_EQ(Reattach(clients[0], other).status().code(), Code::kUnauthenticated);
  other = clients[0].peer;
  other.start_ticks += 1;
  EXPECT_EQ(Reattach(clients[0], other).status().code(), Code::kUnauthenticated);
  Client wrong = clients[0];
  wrong.token[3] = static_cast<char>(wrong.token[3] ^ 1);
  EXPECT_EQ(Reattach(wrong, clients[0].peer).status().code(), Code::kUnauthenticated);
  wrong.token.clear();
  EXPECT_EQ(Reattach(wrong, clients[0].peer).status().code(), Code::kUnauthenticated);
  EXPECT_EQ(control->AwaySessions().size(), 2u);
  EXPECT_NE(Return(clients[0]), nullptr);
  EXPECT_EQ(control->AwaySessions().size(), 1u);
}

TEST_F(ControlRestartTest, AClientThatKnowsNoWayBackIsLostAtOnce) {
  clients.push_back(AttachClient());
  clients.push_back(AttachClient(::getpid(), kReattachProtocol - 1));
  group = Join(Sessions());
  End();
  TakeOver();
  EXPECT_EQ(control->Snapshot().sessions, 1u);
  EXPECT_EQ(Reattach(clients[1], clients[1].peer).status().detail().reason, "SESSION_LOST");
  EXPECT_NE(Return(clients[0]), nullptr);
  EXPECT_EQ(OnlyGroup().state, "broken");
  EXPECT_NE(OnlyGroup().state_reason.find("speaks protocol 1"), std::string::npos);
}

TEST_F(ControlRestartTest, ARankThatDiedMeanwhileIsNamed) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  clients.push_back(AttachClient());
  clients.push_back(AttachClient(child));
  group = Join(Sessions());
  End();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  TakeOver();
  clients[0].session = Return(clients[0]);
  const auto event = NextOfKind(clients[0].session, v1::Event::RANK_LOST);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->rank(), 1);
  EXPECT_EQ(event->status().reason(), "RANK_LOST");
  EXPECT_EQ(event->status().pid(), child);
  EXPECT_EQ(Reattach(clients[1], clients[1].peer).status().code(), Code::kUnauthenticated);
  EXPECT_EQ(OnlyGroup().state, "broken");
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 1u);
  EXPECT_TRUE(Eventually([&] { return engines->Look(0).broken.contains(group); }));
}

TEST_F(ControlRestartTest, EnginesLoseWhatNobodyHasAndGetWhatTheyLack) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  const uint64_t channel = OpenChannel(0);
  End();
  // Sent, and not yet known to anybody; and known, but not sent.
  engine::v1::Command command;
  command.mutable_open_channel()->set_channel_id(999999);
  ASSERT_TRUE(engines->Call(0, command, {}, kWaitBudget).ok());
  command.mutable_remove_plan()->set_plan_id(plan);
  ASSERT_TRUE(engines->Call(1, command, {}, kWaitBudget).ok());
  command.mutable_add_plan()->set_plan_id(plan + 1);
  command.mutable_add_plan()->set_group_id(group);
  ASSERT_TRUE(engines->Call(0, command, {}, kWaitBudget).ok());
  ASSERT_TRUE(engines->AllocateSegment(0, 888888, 4096).ok());
  TakeOver();
  EXPECT_TRUE(Eventually([&] {
    const FakeEngines::State first = engines->Look(0), second = engines->Look(1);
    return !first.channels.contains(999999) && first.channels.contains(channel) &&
           second.plans.contains(plan) && !first.plans.contains(plan + 1) && !first.segments.contains(888888);
  }));
}

TEST_F(ControlRestartTest, AGroupOfAnotherGenerationIsInstalledAgain) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  End();
  engine::v1::Command command;
  command.mutable_add_group()->set_group_id(group);
  command.mutable_add_group()->set_generation(7);
  ASSERT_TRUE(engines->Call(1, command, {}, kWaitBudget).ok());
  TakeOver();
  for (Client& client : clients) client.session = Return(client);
  const auto event = NextOfKind(clients[0].session, v1::Event::ENGINE_RESTARTED);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->generation(), 2u);
  EXPECT_EQ(OnlyGroup().state, "ready");
  EXPECT_EQ(Prepare("ar"), plan);
}

TEST_F(ControlRestartTest, SessionsOnTheGpuOfAnEngineThatEndedAreLost) {
  MakeGroup();
  OpenChannel(1);
  End();
  engines->Lose(1);
  TakeOver();
  EXPECT_EQ(Reattach(clients[1], clients[1].peer).status().code(), Code::kUnauthenticated);
  clients[0].session = Return(clients[0]);
  EXPECT_EQ(OnlyGroup().state, "broken");
  EXPECT_EQ(NextOfKind(clients[0].session, v1::Event::RANK_LOST)->rank(), 1);
}

TEST_F(ControlRestartTest, AJoinWhoseAnswerWasLostGetsItAgain) {
  MakeGroup();
  Restart();
  v1::JoinGroupRequest request = JoinRequest(kGpus, 0);
  EXPECT_EQ(
      control->JoinGroup(clients[0].session, request, Waiter::For(kWaitBudget)).status().detail().reason,
      "JOINED");
  request.set_again(true);
  const auto reply = control->JoinGroup(clients[0].session, request, Waiter::For(kWaitBudget));
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->group_id(), group);
  EXPECT_EQ(reply->incarnation(), 1u);
}

TEST_F(ControlRestartTest, ARendezvousByNumberThatWasUnderWayBeginsAgain) {
  MakeGroup();
  std::vector<uint64_t> tensors;
  for (int rank = 0; rank < kGpus; ++rank)
    tensors.push_back(Empty(clients[static_cast<size_t>(rank)].session, rank));
  auto first = std::async(std::launch::async, [&] {
    return Rendezvous(clients[0].session, tensors[0], group, Waiter::For(kWaitBudget));
  });
  // It waits for the other rank, and ends with this tandemd.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  control->Leave();
  EXPECT_FALSE(first.get().ok());
  for (Client& client : clients) client.session.reset();
  control.reset();
  TakeOver();
  for (Client& client : clients) client.session = Return(client);
  const auto met = Together(kGpus, [&](int rank) {
    return Rendezvous(clients[static_cast<size_t>(rank)].session, tensors[static_cast<size_t>(rank)], group,
                      Waiter::For(kWaitBudget));
  });
  for (const auto& reply : met) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
}

TEST_F(ControlRestartTest, LaunchesByGrpcKeepTheirOutcomes) {
  MakeGroup();
  v1::LaunchRequest request;
  request.set_plan_id(Prepare("ar"));
  const uint64_t ended = control->Launch(clients[0].session, request)->launch_id();
  const uint64_t under_way = control->Launch(clients[0].session, request)->launch_id();
  engine::v1::LaunchDone done;
  done.set_launch_id(ended);
  control->OnLaunchDone(0, done);
  Restart();
  EXPECT_TRUE(control->WaitLaunch(clients[0].session, ended, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(control->WaitLaunch(clients[0].session, under_way, Waiter::For(std::chrono::milliseconds(0)))
                .detail()
                .reason,
            "NOT_ENDED");
  done.set_launch_id(under_way);
  control->OnLaunchDone(0, done);
  EXPECT_TRUE(control->WaitLaunch(clients[0].session, under_way, Waiter::For(kWaitBudget)).ok());
}

TEST_F(ControlRestartTest, ASleepingGroupSleepsOn) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  StepAll(v1::SuspendGroupRequest::STOPPED);
  StepAll(v1::SuspendGroupRequest::UNMAPPED);
  Restart();
  EXPECT_EQ(OnlyGroup().state, "asleep");
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  StepAll(v1::SuspendGroupRequest::RESUMING);
  StepAll(v1::SuspendGroupRequest::MAPPED);
  EXPECT_EQ(OnlyGroup().state, "ready");
  EXPECT_EQ(Prepare("ar"), plan);
}

TEST_F(ControlRestartTest, ASleepingGroupsMemoryIsMadeAnewWhereAnEngineHasLostIt) {
  MakeGroup();
  const uint64_t plan = Prepare("ar");
  StepAll(v1::SuspendGroupRequest::STOPPED);  // the memory is there still
  End();
  engines->Lose(1);
  TakeOver();
  for (Client& client : clients) client.session = Return(client);
  EXPECT_EQ(OnlyGroup().state, "asleep");
  engines->Restart(1);
  StepAll(v1::SuspendGroupRequest::RESUMING);
  StepAll(v1::SuspendGroupRequest::MAPPED);
  EXPECT_EQ(OnlyGroup().state, "ready");
  EXPECT_EQ(Prepare("ar"), plan);
  EXPECT_EQ(engines->Look(1).groups.count(group), 1u);
}

TEST_F(ControlRestartTest, ACordonStays) {
  MakeGroup();
  control->SetAdmission(Admission::kCordoned);
  Restart();
  EXPECT_EQ(control->Snapshot().admission, Admission::kCordoned);
}

}  // namespace
}  // namespace tandem::daemon
