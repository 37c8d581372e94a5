// Calls that wait for ranks or engines: each ends by its deadline, its cancellation or somebody's end, and
// names who is at fault.
#include <gmock/gmock.h>

#include <atomic>

#include "daemon/control/tests/control_fixture.h"
#include "ipc/channel.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlWaitsTest : public ControlTest {
 protected:
  // A waiter that ends when `gone` is set, and sets `waits` once somebody waits with it.
  static Waiter Until(const std::atomic<bool>& gone, std::atomic<bool>* waits = nullptr) {
    Waiter waiter = Waiter::For(kWaitBudget);
    waiter.cancelled = [&gone, waits] {
      if (waits != nullptr) *waits = true;
      return gone.load();
    };
    return waiter;
  }
  // A waiter that ends as soon as somebody waits with it.
  static Waiter Cancelled() {
    Waiter waiter = Waiter::For(kWaitBudget);
    waiter.cancelled = [] { return true; };
    return waiter;
  }
  // A barrier of a rank that is not the last one; it waits for the others when this returns.
  std::future<Result<v1::RendezvousReply>> MeetSoon(const SessionRef& session, uint64_t tensor,
                                                    uint64_t group, std::atomic<bool>* gone = nullptr) {
    auto waits = std::make_shared<std::atomic<bool>>(false);
    auto call = std::async(std::launch::async, [this, session, tensor, group, gone, waits] {
      static const std::atomic<bool> never = false;
      return Rendezvous(session, tensor, group, Until(gone != nullptr ? *gone : never, waits.get()));
    });
    EXPECT_TRUE(Eventually([&] { return waits->load(); }));
    return call;
  }
  // The answer of `call`, which must not need the gate.
  template <typename Call>
  Status BeforeTheGateOpens(Call call) {
    auto answer = std::async(std::launch::async, call);
    EXPECT_EQ(answer.wait_for(kWaitBudget / 2), std::future_status::ready) << "it waits for the engines";
    if (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) gate.Open();
    return answer.get();
  }
  std::future<Status> JoinSoon(const SessionRef& session, int world, int rank, Waiter waiter) {
    return std::async(std::launch::async, [this, session, world, rank, waiter] {
      return control->JoinGroup(session, JoinRequest(world, rank), waiter).status();
    });
  }
  // The first `world` of the sessions, a rank each.
  std::vector<std::future<Status>> JoinAllSoon(const std::vector<SessionRef>& sessions, int world = 2) {
    std::vector<std::future<Status>> calls;
    for (int rank = 0; rank < world; ++rank) {
      calls.push_back(JoinSoon(sessions[static_cast<size_t>(rank)], world, rank, Waiter::For(kWaitBudget)));
    }
    return calls;
  }
  // All ranks have come to a group that is not installed yet.
  bool AwaitInstalling() {
    return Eventually([&] { return control->Snapshot().groups == 1; });
  }
  // `rank` was lost or has left while its group waited for an engine: each call says so.
  void ExpectNamed(std::vector<std::future<Status>> calls, const std::string& rank,
                   const std::string& reason) {
    const auto since = Waiter::Clock::now();
    for (auto& call : calls) {
      const Status reported = call.get();
      EXPECT_EQ(reported.code(), Code::kUnavailable) << reported.ToString();
      EXPECT_EQ(reported.detail().reason, reason) << reported.ToString();
      EXPECT_EQ(reported.detail().who, rank) << reported.ToString();
    }
    EXPECT_LT(Waiter::Clock::now() - since, kWaitBudget / 2);
    EXPECT_EQ(control->Snapshot().groups, 0u);
    EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  }
};

TEST_F(ControlWaitsTest, AJoinThatWaitsForAnEngineEndsByTheFirstDeadline) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(1);
  // Again with more time if rank 1 has come too late for rank 0.
  for (auto time = std::chrono::milliseconds(200);; time *= 2) {
    std::atomic<bool> gone = false;
    auto brief = JoinSoon(sessions[0], 2, 0, Waiter::For(time));
    ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
    auto patient = JoinSoon(sessions[1], 2, 1, Until(gone));
    const Status first = brief.get();
    if (first.detail().reason == "RANK_LATE") {
      gone = true;
      EXPECT_FALSE(patient.get().ok());
      continue;
    }
    const auto since = Waiter::Clock::now();
    for (const Status& reported : {first, patient.get()}) {
      EXPECT_EQ(reported.code(), Code::kDeadlineExceeded) << reported.ToString();
      EXPECT_EQ(reported.detail().reason, "ENGINE_DOWN");
      EXPECT_EQ(reported.detail().who, "gpu 1");
      EXPECT_THAT(reported.message(), HasSubstr("the engine of GPU 1"));
    }
    EXPECT_LT(Waiter::Clock::now() - since, kWaitBudget / 2);
    break;
  }
  EXPECT_EQ(control->Snapshot().groups, 0u);
  engines->Restart(1);
  EXPECT_NE(Join(sessions), 0u);
}

TEST_F(ControlWaitsTest, ARankIsLostWhileItsJoinWaitsForAnEngine) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(0);
  std::vector<std::future<Status>> calls = JoinAllSoon(sessions);
  ASSERT_TRUE(AwaitInstalling());
  control->SessionLost(IdOf(1), "its process has ended");
  ExpectNamed(std::move(calls), "rank 1", "RANK_LOST");
}

TEST_F(ControlWaitsTest, ARankDetachesWhileItsJoinWaitsForAnEngine) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(0);
  std::vector<std::future<Status>> calls = JoinAllSoon(sessions);
  ASSERT_TRUE(AwaitInstalling());
  ASSERT_TRUE(control->Detach(sessions[0], Waiter::For(kWaitBudget)).ok());
  ExpectNamed(std::move(calls), "rank 0", "RANK_LEFT");
}

// A cancelled call is not its rank's last word: it comes again, and the others learn nothing of it.
TEST_F(ControlWaitsTest, ACancelledRendezvousIsTakenUpAgain) {
  Start(3);
  const auto sessions = AttachAll(3);
  const uint64_t group = Join(sessions);
  std::vector<uint64_t> tensors;
  for (int rank = 0; rank < 3; ++rank) tensors.push_back(Empty(sessions[static_cast<size_t>(rank)], rank));
  auto other = MeetSoon(sessions[1], tensors[1], group);
  EXPECT_EQ(Rendezvous(sessions[0], tensors[0], group, Cancelled()).status().code(), Code::kCancelled);
  auto third = MeetSoon(sessions[2], tensors[2], group);
  const auto again = Rendezvous(sessions[0], tensors[0], group, Waiter::For(kWaitBudget));
  EXPECT_TRUE(again.ok()) << again.status().ToString();
  for (auto* call : {&other, &third}) {
    const auto reported = call->get();
    ASSERT_TRUE(reported.ok()) << reported.status().ToString();
    EXPECT_EQ(reported->registration_id(), again->registration_id());
  }
}

// After cancelling a call, a rank may at once make another one: no rank meets the first one any more.
TEST_F(ControlWaitsTest, ACancelledPrepareIsForgottenAtOnce) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  for (const size_t next : {size_t{0}, size_t{1}}) {  // the rank that comes first with another request
    const std::string key = "k" + std::to_string(next);
    const auto prepare = [&](size_t rank, int64_t elements, const Waiter& waiter) {
      return control->Prepare(sessions[rank], AllReduce(group, key, elements), waiter).status();
    };
    std::atomic<bool> gone = false, waits = false;
    auto first = std::async(std::launch::async, [&] { return prepare(0, 7, Until(gone, &waits)); });
    ASSERT_TRUE(Eventually([&] { return waits.load(); }));
    gone = true;
    auto soon = std::async(std::launch::async, [&] { return prepare(next, 8, Waiter::For(kWaitBudget)); });
    EXPECT_EQ(first.get().code(), Code::kCancelled);
    const Status last = prepare(1 - next, 8, Waiter::For(kWaitBudget));
    EXPECT_TRUE(last.ok()) << last.ToString();
    const Status other = soon.get();
    EXPECT_TRUE(other.ok()) << other.ToString();
  }
}

TEST_F(ControlWaitsTest, ACancelledRendezvousThatStaysAwayIsNamed) {
  Start(3);
  const auto sessions = AttachAll(3);
  const uint64_t group = Join(sessions);
  const std::string persistent = "state";
  for (const std::string& name : {std::string(), persistent}) {
    std::vector<uint64_t> tensors;
    for (int rank = 0; rank < 3; ++rank)
      tensors.push_back(Empty(sessions[static_cast<size_t>(rank)], rank, 4096, name));
    auto other = MeetSoon(sessions[1], tensors[1], group);
    EXPECT_EQ(Rendezvous(sessions[0], tensors[0], group, Cancelled()).status().code(), Code::kCancelled);
    const Status late =
        Rendezvous(sessions[2], tensors[2], group, Waiter::For(std::chrono::milliseconds(1))).status();
    for (const Status& reported : {late, other.get().status()}) {
      EXPECT_EQ(reported.code(), Code::kDeadlineExceeded) << reported.ToString();
      EXPECT_EQ(reported.detail().reason, "RANK_LATE");
      EXPECT_EQ(reported.detail().who, "rank 0");
      EXPECT_THAT(reported.message(), HasSubstr("rank 0 did not come within"));
    }
    // All have their answers: they meet again.
    for (auto& reply : Together(3, [&](int rank) {
           return Rendezvous(sessions[static_cast<size_t>(rank)], tensors[static_cast<size_t>(rank)], group,
                             Waiter::For(kWaitBudget));
         })) {
      EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    }
  }
}

TEST_F(ControlWaitsTest, ACancelledRendezvousIsMadeAgainWithAnotherTensor) {
  Start(3);
  const auto sessions = AttachAll(3);
  const uint64_t group = Join(sessions);
  for (const bool others_first : {false, true}) {
    std::vector<uint64_t> tensors;
    for (int rank = 0; rank < 3; ++rank) tensors.push_back(Empty(sessions[static_cast<size_t>(rank)], rank));
    std::future<Result<v1::RendezvousReply>> other;
    if (others_first) other = MeetSoon(sessions[1], tensors[1], group);
    EXPECT_EQ(Rendezvous(sessions[0], tensors[0], group, Cancelled()).status().code(), Code::kCancelled);
    EXPECT_TRUE(control->Free(sessions[0], tensors[0]).ok());
    if (!others_first) other = MeetSoon(sessions[1], tensors[1], group);
    auto again = MeetSoon(sessions[0], Empty(sessions[0], 0), group);
    const auto last = Rendezvous(sessions[2], tensors[2], group, Waiter::For(kWaitBudget));
    EXPECT_TRUE(last.ok()) << last.status().ToString();
    for (auto* call : {&other, &again}) {
      const auto reply = call->get();
      EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    }
  }
}

// A retry waits at the same place as the first call: the end of one of the two is not the rank's.
TEST_F(ControlWaitsTest, OneOfTwoCallsIsCancelled) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const std::vector<uint64_t> tensors = {Empty(sessions[0], 0), Empty(sessions[1], 1)};
  auto first = MeetSoon(sessions[0], tensors[0], group);
  EXPECT_EQ(Rendezvous(sessions[0], tensors[0], group, Cancelled()).status().code(), Code::kCancelled);
  EXPECT_TRUE(Rendezvous(sessions[1], tensors[1], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(first.get().ok());
}

// The rank that came last does the work, by its own deadline; the others' calls end by theirs.
TEST_F(ControlWaitsTest, ARendezvousEndsByItsOwnDeadlineWhileTheEnginesAreTold) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const std::vector<uint64_t> tensors = {Empty(sessions[0], 0), Empty(sessions[1], 1)};
  HoldAt(engine::v1::Command::kAddRegistration, 1);
  gate.Shut();
  std::atomic<bool> gone = false;
  auto first = MeetSoon(sessions[0], tensors[0], group, &gone);
  auto worker = std::async(std::launch::async, [&] {
    return Rendezvous(sessions[1], tensors[1], group, Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  gone = true;
  EXPECT_EQ(BeforeTheGateOpens([&] { return first.get().status(); }).code(), Code::kCancelled);
  gate.Open();
  const auto made = worker.get();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto again = Rendezvous(sessions[0], tensors[0], group, Waiter::For(kWaitBudget));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->registration_id(), made->registration_id());
}

TEST_F(ControlWaitsTest, APrepareEndsByItsOwnDeadlineWhileTheEnginesAreTold) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const auto prepare = [&](size_t rank, const Waiter& waiter) {
    return control->Prepare(sessions[rank], AllReduce(group, "ar"), waiter);
  };
  HoldAt(engine::v1::Command::kAddPlan, 1);
  gate.Shut();
  std::atomic<bool> gone = false, waits = false;
  auto first = std::async(std::launch::async, [&] { return prepare(0, Until(gone, &waits)); });
  ASSERT_TRUE(Eventually([&] { return waits.load(); }));
  auto worker = std::async(std::launch::async, [&] { return prepare(1, Waiter::For(kWaitBudget)); });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  const Status late =
      BeforeTheGateOpens([&] { return prepare(0, Waiter::For(std::chrono::milliseconds(1))).status(); });
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.ToString();
  EXPECT_EQ(late.detail().reason, "UNDER_WAY");
  gone = true;
  EXPECT_EQ(BeforeTheGateOpens([&] { return first.get().status(); }).code(), Code::kCancelled);
  gate.Open();
  const auto made = worker.get();
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto again = prepare(0, Waiter::For(kWaitBudget));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->plan().plan_id(), made->plan().plan_id());
}

// An engine that stands still answers nobody; a rank's end is nevertheless announced.
TEST_F(ControlWaitsTest, ARankIsLostWhileAnEngineStandsStill) {
  Start(2);
  auto sessions = AttachAll(2);
  HoldAt(engine::v1::Command::kAddGroup, 1);
  gate.Shut();
  std::vector<std::future<Status>> joins = JoinAllSoon(sessions);
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  control->SessionLost(IdOf(1), "its process has ended");
  const Status joined = BeforeTheGateOpens([&] { return joins[0].get(); });
  EXPECT_EQ(joined.detail().reason, "RANK_LOST") << joined.ToString();
  EXPECT_EQ(joined.detail().who, "rank 1");
  gate.Open();
  EXPECT_FALSE(joins[1].get().ok());

  sessions[1] = Attach(1001);
  const uint64_t group = Join(sessions);
  HoldAt(engine::v1::Command::kAddPlan, 0);
  gate.Shut();
  const int held = gate.held();
  std::vector<std::future<Status>> prepares;
  for (int rank = 0; rank < 2; ++rank) {
    prepares.push_back(std::async(std::launch::async, [&, rank] {
      return control
          ->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "ar"), Waiter::For(kWaitBudget))
          .status();
    }));
  }
  ASSERT_TRUE(Eventually([&] { return gate.held() > held; }));
  control->SessionLost(IdOf(0), "its process has ended");
  const Status prepared = BeforeTheGateOpens([&] { return prepares[1].get(); });
  EXPECT_EQ(prepared.detail().reason, "RANK_LOST") << prepared.ToString();
  EXPECT_EQ(prepared.detail().who, "rank 0");
  gate.Open();
  EXPECT_FALSE(prepares[0].get().ok());
}

// One call of a group works on its memory at a time; who waits for it waits no longer than it may.
TEST_F(ControlWaitsTest, ACallDoesNotWaitBeyondItsDeadlineForAnotherOfItsGroup) {
  Start(1);
  const SessionRef session = Attach();
  const uint64_t group = Join({session});
  HoldAt(engine::v1::Command::kAddPlan, 0);
  gate.Shut();
  auto plan = std::async(std::launch::async, [&] {
    return control->Prepare(session, AllReduce(group, "ar"), Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  const uint64_t tensor = Empty(session, 0);
  const Waiter brief = Waiter::For(std::chrono::milliseconds(50));
  const Status met = BeforeTheGateOpens([&] { return Rendezvous(session, tensor, group, brief).status(); });
  EXPECT_EQ(met.code(), Code::kDeadlineExceeded) << met.ToString();
  EXPECT_EQ(met.detail().reason, "GROUP_BUSY");
  const Status other = BeforeTheGateOpens(
      [&] { return control->Prepare(session, AllReduce(group, "other"), brief).status(); });
  EXPECT_EQ(other.detail().reason, "GROUP_BUSY") << other.ToString();
  gate.Open();
  EXPECT_TRUE(plan.get().ok());
  EXPECT_TRUE(Rendezvous(session, tensor, group, Waiter::For(kWaitBudget)).ok());
}

TEST_F(ControlWaitsTest, ANameWhoseGroupIsBeingMadeIsSaidToBe) {
  Start(2);
  const auto sessions = AttachAll(3);
  engines->Kill(0);
  std::vector<std::future<Status>> calls = JoinAllSoon(sessions);
  ASSERT_TRUE(AwaitInstalling());
  const Status third =
      control->JoinGroup(sessions[2], JoinRequest(2, 0), Waiter::For(std::chrono::milliseconds(1))).status();
  EXPECT_EQ(third.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(third.message(), HasSubstr("is being made by other processes"));
  engines->Restart(0);
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
}

// A caller that gets OK frees memory that its engine may use no more. Calls end before the engines when the
// daemon stops: that is not OK.
TEST_F(ControlWaitsTest, NothingIsSaidToBeLetGoByAnEngineThatIsBeingStopped) {
  Start(1);
  const SessionRef session = Attach();
  const uint64_t group = Join({session});
  v1::OpenChannelRequest open;
  open.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  const auto channel = control->OpenChannel(session, open, Waiter::For(kWaitBudget));
  ASSERT_TRUE(channel.ok()) << channel.status().ToString();
  v1::FdTransfer part;
  part.set_transfer_id(1);
  part.set_total(1);
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(*CreateSealedMemfd("own", 4096)));
  ASSERT_TRUE(control->AddTransfer(IdOf(0), part, std::move(fds)).ok());
  v1::RegisterTensorRequest memory;
  memory.set_gpu_uuid(open.gpu_uuid());
  memory.set_bytes(4096);
  memory.add_chunk_bytes(4096);
  memory.set_transfer_id(1);
  const auto registered = control->RegisterTensor(session, memory, Waiter::For(kWaitBudget));
  ASSERT_TRUE(registered.ok()) << registered.status().ToString();
  // The keeper ends calls as soon as the daemon stops: here once the gate opens.
  using C = engine::v1::Command;
  const std::set<C::CommandCase> held = {C::kRemoveRegistration, C::kCloseChannel, C::kLeaveGroup};
  engines->before = [&](int, const C& command) {
    if (held.contains(command.command_case())) gate.Pass();
  };
  engines->fail = [&](int, const C& command) {
    return held.contains(command.command_case()) ? Unavailable("the daemon is stopping") : Status::Ok();
  };
  gate.Shut();
  // LeaveGroup does not wait behind the commands that are held; it is under way first, for a ping goes ahead
  // of it.
  auto leaves = std::async(std::launch::async,
                           [&] { return control->LeaveGroup(session, group, Waiter::For(kWaitBudget)); });
  ASSERT_TRUE(Eventually([&] { return gate.held() == 1; }));
  auto deregisters = std::async(std::launch::async, [&] {
    return control->Deregister(session, registered->registration_id(), Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] { return gate.held() == 2; }));
  auto closes = std::async(std::launch::async, [&] {
    return control->CloseChannel(session, channel->channel_id(), Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] { return control->SnapshotChannels().empty(); }));
  control->Stop();
  gate.Open();
  for (auto* call : {&leaves, &deregisters, &closes}) {
    const Status reported = call->get();
    EXPECT_EQ(reported.code(), Code::kUnavailable) << reported.ToString();
  }
}

// The daemon stops, and its engines with it: no call reports an engine that has failed.
TEST_F(ControlWaitsTest, AnEngineThatIsStoppedWithTheDaemonSaysSo) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  v1::OpenChannelRequest open;
  open.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  open.set_entries(16);
  const auto channel = control->OpenChannel(sessions[0], open, Waiter::For(kWaitBudget));
  ASSERT_TRUE(channel.ok()) << channel.status().ToString();
  const auto ring_and_words = lease.last();
  ASSERT_EQ(ring_and_words.size(), 2u);
  auto words = ChannelWords::Map(ring_and_words[1]->get(), 16);
  ASSERT_TRUE(words.ok()) << words.status().ToString();
  control->Stop();
  engines->Kill(0);
  EXPECT_TRUE(words->Released());
  EXPECT_EQ(words->ClosedStatus().code(), Code::kUnavailable) << words->ClosedStatus().ToString();
  EXPECT_THAT(words->ClosedStatus().message(), HasSubstr("the daemon is stopping"));
  // The group's other engine gets the same, for its launches under way.
  EXPECT_TRUE(Eventually([&] { return engines->Look(1).broken.contains(group); }));
  EXPECT_EQ(engines->Look(1).broken[group].code(), static_cast<int>(Code::kUnavailable));
}

}  // namespace
}  // namespace tandem::daemon
