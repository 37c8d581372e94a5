#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

TEST_F(ControlTest, TokensAreCheckedInFull) {
  Start(1);
  const SessionRef session = Attach();
  EXPECT_EQ(control->Authenticate("").status().detail().reason, "NO_TOKEN");
  EXPECT_EQ(control->Authenticate("short").status().detail().reason, "BAD_TOKEN");
  EXPECT_EQ(control->Authenticate(std::string(16, 'x')).status().detail().reason, "SESSION_LOST");
  control->SessionLost(IdOf(0), "test");
  v1::EmptyRequest request;
  request.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  EXPECT_EQ(control->Empty(session, request).status().detail().reason, "SESSION_LOST");
}

TEST_F(ControlTest, EightRanksJoinAndAllLearnTheSame) {
  Start(8);
  const auto sessions = AttachAll(8);
  const uint64_t group = Join(sessions);
  for (int gpu = 0; gpu < 8; ++gpu) {
    const auto state = engines->Look(gpu);
    ASSERT_TRUE(state.groups.contains(group));
    EXPECT_EQ(state.groups.at(group).rank(), static_cast<uint32_t>(gpu));
    EXPECT_EQ(state.groups.at(group).signal_segments_size(), 8);
    EXPECT_EQ(state.segments.size(), 8u);  // the own control segment and the peers'
  }
}

// Fused kernels are on offer where every member's engine has them; else the offer says whose has not, and
// why.
TEST_F(ControlTest, FusedKernelsAreOfferedWhereAllEnginesHaveThem) {
  Start(3);
  engines->no_fused_kernels[2] = "its GPU is of compute capability 8.0";
  const auto sessions = AttachAll(3);
  EXPECT_TRUE(OfferOf(JoinOn({0, 1}, sessions, "both"), Algorithm::kFused).available());
  const v1::Offer offer = OfferOf(JoinOn({0, 2}, sessions, "one"), Algorithm::kFused);
  EXPECT_FALSE(offer.available());
  EXPECT_EQ(offer.reason(),
            "the engine of rank 1 has no fused kernels: its GPU is of compute capability 8.0");
}

// A group with engines of two builds has the abilities of both. The daemon's own backend does not decide.
TEST_F(ControlTest, PacketKernelsAreOfferedWhereAllEnginesAnnounceThem) {
  ControlOptions options;
  options.backend = "cuda";
  Start(3, options);
  engines->capabilities_of[2] = {.communicators = true, .ipc_memory = true, .on_gpu = true};
  const auto sessions = AttachAll(3);
  EXPECT_TRUE(OfferOf(JoinOn({0, 1}, sessions, "both"), Algorithm::kLowLatency).available());
  const v1::Offer offer = OfferOf(JoinOn({0, 2}, sessions, "one"), Algorithm::kLowLatency);
  EXPECT_FALSE(offer.available());
  EXPECT_EQ(offer.reason(),
            "needs the CUDA backend's packet kernels in every engine; this daemon's backend is cuda");
}

TEST_F(ControlTest, AWrongSlotAnswersEveryRankAtOnce) {
  Start(4);
  struct Case {
    std::function<void(v1::JoinGroupRequest&)> change;
    Code code;
    std::string field, text;
  };
  const std::vector<Case> cases = {
      {[](auto& r) { r.set_world_size(3); }, Code::kInvalidArgument, "world_size", "rank 1 has 3"},
      {[](auto& r) { r.set_world_size(9); }, Code::kInvalidArgument, "world_size", "world size 9"},
      {[](auto& r) { r.set_rank(2); }, Code::kOutOfRange, "rank", "out of range"},
      {[](auto& r) { r.set_rank(-1); }, Code::kOutOfRange, "rank", "out of range"},
      {[](auto& r) { r.set_rank(0); }, Code::kAlreadyExists, "rank", "rank 0 is taken by pid 1000"},
      {[&](auto& r) { r.set_gpu_uuid(control->options().topology.gpus[0].uuid); }, Code::kInvalidArgument,
       "gpu_uuid", "both use GPU"},
      {[](auto& r) { r.set_host_id("elsewhere"); }, Code::kFailedPrecondition, "host_id", "another host"},
      {[](auto& r) { (*r.mutable_options())["nccl.min_ctas"] = "x"; }, Code::kInvalidArgument, "options",
       "'x' on rank 1"},
      {[](auto& r) { (*r.mutable_options())["placment"] = "client"; }, Code::kInvalidArgument, "options",
       "no group option 'placment'; did you mean 'placement'?"},
      {[](auto& r) { r.set_gpu_uuid("GPU-unknown"); }, Code::kNotFound, "gpu_uuid", "rank 1"},
  };
  const auto sessions = AttachAll(2);
  for (const Case& c : cases) {
    auto first = std::async(std::launch::async, [&] {
      return control->JoinGroup(sessions[0], JoinRequest(2, 0), Waiter::For(kWaitBudget));
    });
    ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
    v1::JoinGroupRequest wrong = JoinRequest(2, 1);
    c.change(wrong);
    const Status second = control->JoinGroup(sessions[1], wrong, Waiter::For(kWaitBudget)).status();
    const Status reported = first.get().status();
    EXPECT_EQ(second.code(), c.code) << second.ToString();
    EXPECT_EQ(reported.code(), c.code);
    EXPECT_EQ(reported.detail().field, c.field);
    EXPECT_THAT(reported.message(), HasSubstr(c.text));
  }
  EXPECT_NE(Join(sessions), 0u);  // nothing of it stays
}

TEST_F(ControlTest, AMissingRankIsNamedAtTheDeadline) {
  Start(4);
  const auto sessions = AttachAll(2);
  const Status late =
      control->JoinGroup(sessions[0], JoinRequest(4, 0), Waiter::For(std::chrono::milliseconds(30))).status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("ranks 1, 2, 3"));
  EXPECT_TRUE(control->SnapshotGroups().empty());
}

TEST_F(ControlTest, ACancelledJoinGivesItsSlotBack) {
  Start(2);
  const auto sessions = AttachAll(2);
  std::atomic<bool> gone = false;
  Waiter waiter = Waiter::For(kWaitBudget);
  waiter.cancelled = [&] { return gone.load(); };
  auto cancelled = std::async(std::launch::async,
                              [&] { return control->JoinGroup(sessions[0], JoinRequest(2, 0), waiter); });
  ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
  gone = true;
  EXPECT_EQ(cancelled.get().status().code(), Code::kCancelled);
  EXPECT_NE(Join(sessions), 0u);
}

// A cancellation may be seen after the call that repeats the cancelled one.
TEST_F(ControlTest, AJoinThatIsRepeatedAwaitsTheEndOfTheFirst) {
  Start(2);
  const auto sessions = AttachAll(2);
  std::atomic<bool> gone = false;
  Waiter waiter = Waiter::For(kWaitBudget), again = waiter;
  waiter.cancelled = [&] { return gone.load(); };
  again.cancelled = [&] {
    gone = true;
    return false;
  };
  auto cancelled = std::async(std::launch::async,
                              [&] { return control->JoinGroup(sessions[0], JoinRequest(2, 0), waiter); });
  ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
  auto repeated = std::async(std::launch::async,
                             [&] { return control->JoinGroup(sessions[0], JoinRequest(2, 0), again); });
  EXPECT_EQ(cancelled.get().status().code(), Code::kCancelled);
  const auto other = control->JoinGroup(sessions[1], JoinRequest(2, 1), Waiter::For(kWaitBudget));
  EXPECT_TRUE(other.ok()) << other.status().ToString();
  const auto joined = repeated.get();
  EXPECT_TRUE(joined.ok()) << joined.status().ToString();
}

TEST_F(ControlTest, ADeadJoinerAnswersTheOthers) {
  Start(2);
  const auto sessions = AttachAll(2);
  auto first = std::async(std::launch::async, [&] {
    return control->JoinGroup(sessions[0], JoinRequest(3, 0), Waiter::For(kWaitBudget));
  });
  auto second = std::async(std::launch::async, [&] {
    return control->JoinGroup(sessions[1], JoinRequest(3, 1), Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] {
    auto groups = control->SnapshotGroups();
    return groups.size() == 1 && groups[0].members.size() == 2;
  }));
  control->SessionLost(IdOf(1), "its process has ended");
  const Status reported = first.get().status();
  EXPECT_EQ(reported.code(), Code::kUnavailable);
  EXPECT_THAT(reported.message(), HasSubstr("rank 1 (pid 1001)"));
  EXPECT_FALSE(second.get().ok());
}

// A killed process's call may be seen to end before its session is.
TEST_F(ControlTest, ADeadJoinerWhoseCallEndedFirstAnswersTheOthers) {
  Start(2);
  const auto sessions = AttachAll(2);
  auto first = std::async(std::launch::async, [&] {
    return control->JoinGroup(sessions[0], JoinRequest(3, 0), Waiter::For(kWaitBudget));
  });
  std::atomic<bool> gone = false;
  Waiter waiter = Waiter::For(kWaitBudget);
  waiter.cancelled = [&] { return gone.load(); };
  auto second = std::async(std::launch::async,
                           [&] { return control->JoinGroup(sessions[1], JoinRequest(3, 1), waiter); });
  ASSERT_TRUE(Eventually([&] {
    auto groups = control->SnapshotGroups();
    return groups.size() == 1 && groups[0].members.size() == 2;
  }));
  gone = true;
  EXPECT_EQ(second.get().status().code(), Code::kCancelled);
  const auto start = Waiter::Clock::now();
  control->SessionLost(IdOf(1), "its process has ended");
  const Status reported = first.get().status();
  EXPECT_EQ(reported.code(), Code::kUnavailable);
  EXPECT_THAT(reported.message(), HasSubstr("rank 1 (pid 1001)"));
  EXPECT_LT(Waiter::Clock::now() - start, kWaitBudget / 2);
  EXPECT_TRUE(control->SnapshotGroups().empty());
}

// Somebody else has taken the slot meanwhile. The end of the rank that gave it up concerns nobody.
TEST_F(ControlTest, ASlotThatWasGivenUpIsForgottenOnceTaken) {
  Start(3);
  const auto sessions = AttachAll(3);
  const auto seated = [&](size_t count) {
    return Eventually([&] {
      auto groups = control->SnapshotGroups();
      return groups.size() == 1 && groups[0].members.size() == count;
    });
  };
  const auto join = [&](size_t session, int rank) {
    return std::async(std::launch::async, [&, session, rank] {
      return control->JoinGroup(sessions[session], JoinRequest(3, rank), Waiter::For(kWaitBudget)).status();
    });
  };
  auto first = join(0, 0);
  ASSERT_TRUE(seated(1));
  Waiter cancelled = Waiter::For(kWaitBudget);
  cancelled.cancelled = [] { return true; };
  EXPECT_EQ(control->JoinGroup(sessions[1], JoinRequest(3, 1), cancelled).status().code(), Code::kCancelled);
  auto second = join(2, 1);
  ASSERT_TRUE(seated(2));
  control->SessionLost(IdOf(1), "its process has ended");
  EXPECT_TRUE(seated(2));
  control->SessionLost(IdOf(0), "its process has ended");
  EXPECT_EQ(second.get().code(), Code::kUnavailable);
  EXPECT_FALSE(first.get().ok());
}

TEST_F(ControlTest, ADeathBreaksTheGroupAndTheNameComesBack) {
  Start(3);
  auto sessions = AttachAll(3);
  const size_t descriptors = OpenDescriptors();
  const uint64_t group = Join(sessions);
  control->SessionLost(IdOf(2), "its process has ended");
  auto lost = NextOfKind(sessions[0], v1::Event::RANK_LOST);
  ASSERT_TRUE(lost.ok());
  EXPECT_EQ(lost->rank(), 2);
  EXPECT_THAT(lost->status().message(), HasSubstr("rank 2 (pid 1002)"));
  EXPECT_TRUE(NextOfKind(sessions[1], v1::Event::GROUP_BROKEN).ok());
  ASSERT_TRUE(Eventually([&] { return engines->Look(0).broken.contains(group); }));
  EXPECT_EQ(engines->Look(0).broken.at(group).code(), static_cast<int>(Code::kUnavailable));
  const Status prepare =
      control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status();
  EXPECT_EQ(prepare.code(), Code::kUnavailable);
  EXPECT_EQ(prepare.detail().who, "rank 2");
  // The survivors' next join leaves the broken incarnation and opens the next one.
  sessions[2] = Attach(1002);
  auto replies = Together(3, [&](int rank) {
    return control->JoinGroup(sessions[static_cast<size_t>(rank)], JoinRequest(3, rank),
                              Waiter::For(kWaitBudget));
  });
  for (auto& reply : replies) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->incarnation(), 2u);
    EXPECT_NE(reply->group_id(), group);
  }
  ASSERT_TRUE(Eventually([&] { return !engines->Look(0).groups.contains(group); }));
  for (auto& session : sessions) ASSERT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(
      Eventually([&] { return engines->Look(0).segments.empty() && OpenDescriptors() <= descriptors; }));
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  EXPECT_EQ(control->Snapshot().descriptors, 0u);
}

TEST_F(ControlTest, ACleanEndNeverLooksLikeADeath) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  auto event = control->NextEvent(sessions[0], control->OpenEvents(sessions[0]), Waiter::For(kWaitBudget));
  ASSERT_TRUE(event.ok() && event->has_value());
  EXPECT_EQ((*event)->kind(), v1::Event::RANK_LEFT);
  EXPECT_EQ((*event)->rank(), 1);
  EXPECT_FALSE(engines->Look(0).broken.contains(group));
  EXPECT_EQ(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).code(), Code::kNotFound);
  const Status later =
      control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status();
  EXPECT_THAT(later.message(), HasSubstr("rank 1 (pid 1001) has left"));
  ASSERT_TRUE(control->LeaveGroup(sessions[0], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(control->Snapshot().groups, 0u);
}

TEST_F(ControlTest, JobsOfTheSameNameDoNotMeet) {
  Start(4);
  const auto sessions = AttachAll(2);
  v1::JoinGroupRequest stranger = JoinRequest(2, 1);
  stranger.set_job_key("another-job-key!");
  auto first = std::async(std::launch::async, [&] {
    return control->JoinGroup(sessions[0], JoinRequest(2, 0), Waiter::For(std::chrono::milliseconds(200)));
  });
  EXPECT_EQ(
      control->JoinGroup(sessions[1], stranger, Waiter::For(std::chrono::milliseconds(200))).status().code(),
      Code::kDeadlineExceeded);
  EXPECT_EQ(first.get().status().code(), Code::kDeadlineExceeded);
}

TEST_F(ControlTest, QuotasNameLimitAndUsage) {
  ControlOptions options;
  options.limits.sessions_per_uid = 2;
  Start(2, options);
  AttachAll(2);
  v1::AttachRequest request;
  request.set_protocol_min(kProtocol);
  request.set_protocol_max(kProtocol);
  const Status over = control->Attach({.uid = 7, .gid = 7, .pid = 5}, request).status();
  EXPECT_EQ(over.code(), Code::kResourceExhausted);
  EXPECT_EQ(over.detail().reason, "QUOTA_SESSIONS_PER_UID");
  EXPECT_EQ(over.detail().limit, 2);
  EXPECT_EQ(over.detail().usage, 2);
  EXPECT_TRUE(control->Attach({.uid = 8, .gid = 7, .pid = 5}, request).ok());
  request.set_protocol_min(9);
  request.set_protocol_max(9);
  EXPECT_EQ(control->Attach({.uid = 8, .gid = 7, .pid = 5}, request).status().detail().reason, "PROTOCOL");
}

TEST_F(ControlTest, QuotasOfACgroupCountAllOfItsUids) {
  ControlOptions options;
  options.limits.cgroup = {.sessions = 3,
                           .groups = 1,
                           .plans = 1,
                           .tensors = 2,
                           .descriptors = 64,
                           .segment_bytes = 32 << 20,
                           .registered_bytes = 0};
  Start(2, options);
  const auto attach = [&](uint32_t uid, int pid, const std::string& cgroup) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    return control->Attach({.uid = uid, .gid = 7, .pid = pid, .cgroup = cgroup}, request);
  };
  const auto expect_refused = [](const Status& status, const std::string& reason, long long limit,
                                 long long usage) {
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
    EXPECT_EQ(
        status.detail(),
        (StatusDetail{.reason = reason, .who = "cgroup /pod", .field = {}, .limit = limit, .usage = usage}));
  };
  std::vector<SessionRef> sessions;
  for (int rank : {0, 1}) sessions.push_back(*control->Authenticate(attach(7, 1000 + rank, "/pod")->token()));
  const auto stranger = attach(8, 1002, "/pod");
  ASSERT_TRUE(stranger.ok());
  const SessionRef other = *control->Authenticate(stranger->token());
  expect_refused(attach(9, 1003, "/pod").status(), "QUOTA_SESSIONS_PER_CGROUP", 3, 3);
  EXPECT_TRUE(attach(9, 1003, "/elsewhere").ok());

  const uint64_t group = Join(sessions);
  ASSERT_NE(group, 0u);
  expect_refused(control->JoinGroup(other, JoinRequest(1, 0, "second"), Waiter::For(kWaitBudget)).status(),
                 "QUOTA_GROUPS", 1, 1);
  const auto prepare = [&](const std::string& key) {
    return Together(2,
                    [&](int rank) {
                      return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, key),
                                              Waiter::For(kWaitBudget));
                    })[0]
        .status();
  };
  EXPECT_TRUE(prepare("first").ok());
  expect_refused(prepare("second"), "QUOTA_PLANS", 1, 1);
  v1::EmptyRequest empty;
  empty.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  empty.mutable_spec()->set_dtype(static_cast<uint32_t>(DType::kF32));
  empty.mutable_spec()->add_shape(1024);
  EXPECT_TRUE(control->Empty(sessions[0], empty).ok());
  EXPECT_TRUE(control->Empty(other, empty).ok());
  expect_refused(control->Empty(sessions[1], empty).status(), "QUOTA_TENSORS", 2, 2);
  empty.mutable_spec()->set_shape(0, 8 << 20);
  EXPECT_EQ(control->Empty(sessions[1], empty).status().detail().reason, "QUOTA_SEGMENT_BYTES");

  // All of it is given back.
  for (const SessionRef& session : {sessions[0], sessions[1], other}) {
    ASSERT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  }
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(attach(7, 2000 + i, "/pod").ok());
}

TEST_F(ControlTest, DrainingRefusesWhatIsNewAndSaysSo) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  control->SetAdmission(Admission::kDraining);
  EXPECT_TRUE(NextOfKind(sessions[0], v1::Event::DRAINING).ok());
  EXPECT_EQ(control->JoinGroup(sessions[0], JoinRequest(2, 0, "other"), Waiter::For(kWaitBudget))
                .status()
                .detail()
                .reason,
            "DRAINING");
  // Jobs that are there go on, with new plans too.
  for (const auto& plan : Together(2, [&](int rank) {
         return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "k"),
                                 Waiter::For(kWaitBudget));
       })) {
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  }
  EXPECT_EQ(control->WaitDrained(Waiter::For(std::chrono::milliseconds(10))).second, 1u);
  for (const auto& session : sessions) ASSERT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(control->WaitDrained(Waiter::For(kWaitBudget)), (std::pair<uint64_t, uint64_t>(0, 0)));
}

TEST_F(ControlTest, RulesAdmitProcessesToGpus) {
  ControlOptions options;
  ControlLimits few;
  few.plans = 3;
  few.sessions_per_uid = 1;
  options.allow = {{.uid = 1000, .gid = {}, .cgroup = "", .gpus = std::set<int>{1}, .limits = few},
                   {.uid = {}, .gid = 7, .cgroup = "/kubepods/", .gpus = std::nullopt}};
  Start(2, options);
  v1::AttachRequest request;
  request.set_protocol_min(kProtocol);
  request.set_protocol_max(kProtocol);
  const auto attach = [&](uint32_t uid, uint32_t gid, const std::string& cgroup) {
    return control->Attach({.uid = uid, .gid = gid, .pid = 9, .cgroup = cgroup}, request);
  };
  const auto bound = attach(1000, 7, "/kubepods/pod1");
  ASSERT_TRUE(bound.ok()) << bound.status().ToString();
  ASSERT_EQ(bound->gpus_size(), 1);
  EXPECT_EQ(bound->gpus(0).index(), 1);
  EXPECT_EQ(bound->limits().at("plans"), 3);
  EXPECT_EQ(attach(1000, 7, "/kubepods/pod1").status().detail().reason, "QUOTA_SESSIONS_PER_UID");
  EXPECT_EQ(attach(5, 7, "/kubepods")->gpus_size(), 2);
  EXPECT_EQ(attach(5, 7, "/kubepods")->limits().at("plans"), static_cast<int64_t>(ControlLimits().plans));
  EXPECT_EQ(attach(5, 7, "/kubepods/pod1")->gpus_size(), 2);
  for (const auto& refused : {attach(5, 7, "/kubepods2"), attach(5, 7, ""), attach(5, 8, "/kubepods")}) {
    EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
    EXPECT_EQ(refused.status().detail().reason, "NOT_ALLOWED");
  }
  const SessionRef session = *control->Authenticate(bound->token());
  const std::string foreign = control->options().topology.gpus[0].uuid;
  v1::EmptyRequest empty;
  empty.set_gpu_uuid(foreign);
  empty.mutable_spec()->set_dtype(static_cast<uint32_t>(DType::kF32));
  empty.mutable_spec()->add_shape(16);
  EXPECT_EQ(control->Empty(session, empty).status().detail().reason, "GPU_NOT_ALLOWED");
  v1::OpenChannelRequest channel;
  channel.set_gpu_uuid(foreign);
  EXPECT_EQ(control->OpenChannel(session, channel, Waiter::For(kWaitBudget)).status().detail().reason,
            "GPU_NOT_ALLOWED");
  const Status join = control->JoinGroup(session, JoinRequest(1, 0), Waiter::For(kWaitBudget)).status();
  EXPECT_EQ(join.code(), Code::kPermissionDenied) << join.ToString();
  EXPECT_EQ(join.detail().reason, "GPU_NOT_ALLOWED");
  control->SetAllow({});
  EXPECT_EQ(attach(5, 8, "")->gpus_size(), 2);
}

TEST_F(ControlTest, NewQuotasHoldFromThenOn) {
  ControlOptions options;
  ControlLimits& limits = options.limits;
  limits.groups = 1;
  Start(1, options);
  const auto sessions = AttachAll(1);
  const auto join = [&](const char* name) {
    return control->JoinGroup(sessions[0], JoinRequest(1, 0, name), Waiter::For(kWaitBudget)).status();
  };
  EXPECT_TRUE(join("first").ok());
  EXPECT_EQ(join("second").detail().reason, "QUOTA_GROUPS");
  limits.groups = 2;
  limits.sessions = 1;  // not taken over
  control->SetLimits(limits);
  EXPECT_TRUE(join("second").ok());
  EXPECT_EQ(join("third").detail().limit, 2);
  EXPECT_NE(control->options().limits.sessions, 1u);
}

TEST_F(ControlTest, NoRoomForMemoryIsOneClearError) {
  Start(2);
  engines->memory_bytes = 1 << 20;
  const auto sessions = AttachAll(2);
  auto replies = Together(2, [&](int rank) {
    return control->JoinGroup(sessions[static_cast<size_t>(rank)], JoinRequest(2, rank),
                              Waiter::For(kWaitBudget));
  });
  for (auto& reply : replies) EXPECT_EQ(reply.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  EXPECT_EQ(control->Snapshot().groups, 0u);
  engines->memory_bytes = 1 << 30;
  EXPECT_NE(Join(sessions), 0u);
}

}  // namespace
}  // namespace tandem::daemon
