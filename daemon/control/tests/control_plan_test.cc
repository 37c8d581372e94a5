#include <gmock/gmock.h>

#include "daemon/control/records/plan_records.h"
#include "daemon/control/tests/control_fixture.h"
#include "ipc/channel.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlPlanTest : public ControlTest {
 protected:
  std::vector<Result<v1::PrepareReply>> PrepareAll(const std::vector<SessionRef>& sessions,
                                                   const std::function<v1::PrepareRequest(int)>& request) {
    return Together(static_cast<int>(sessions.size()), [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], request(rank), Waiter::For(kWaitBudget));
    });
  }
  // A launch of an all-reduce that the sessions have joined a group and prepared for.
  v1::LaunchRequest PreparedLaunch(const std::vector<SessionRef>& sessions) {
    const uint64_t group = Join(sessions);
    auto prepared = PrepareAll(sessions, [&](int) { return AllReduce(group, "k"); });
    EXPECT_TRUE(prepared[0].ok()) << prepared[0].status().ToString();
    v1::LaunchRequest launch;
    if (prepared[0].ok()) launch.set_plan_id(prepared[0]->plan().plan_id());
    return launch;
  }
};

TEST_F(ControlPlanTest, RanksMeetByKeyAndARetryGetsTheSamePlan) {
  Start(4);
  const auto sessions = AttachAll(4);
  const uint64_t group = Join(sessions);
  auto replies = PrepareAll(sessions, [&](int) { return AllReduce(group, "k"); });
  for (auto& reply : replies) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->plan().plan_id(), replies[0]->plan().plan_id());
    EXPECT_FALSE(reply->plan().reason().empty());
    EXPECT_EQ(reply->plan().operands(0).span_bytes(), 4096u);
  }
  const uint64_t id = replies[0]->plan().plan_id();
  for (int gpu = 0; gpu < 4; ++gpu) {
    ASSERT_TRUE(engines->Look(gpu).plans.contains(id));
    EXPECT_EQ(engines->Look(gpu).plans.at(id).program().rank(), gpu);
  }
  auto retry = control->Prepare(sessions[1], AllReduce(group, "k"), Waiter::For(kWaitBudget));
  ASSERT_TRUE(retry.ok());
  EXPECT_EQ(retry->plan().plan_id(), id);
  EXPECT_EQ(control->Prepare(sessions[1], AllReduce(group, "k", 7), Waiter::For(kWaitBudget))
                .status()
                .detail()
                .reason,
            "KEY_REUSED");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(control->ReleasePlan(sessions[static_cast<size_t>(rank)], id).ok());
    EXPECT_EQ(control->ReleasePlan(sessions[static_cast<size_t>(rank)], id).code(), Code::kNotFound);
  }
  EXPECT_TRUE(Eventually([&] { return engines->Look(0).plans.empty(); }));
  EXPECT_EQ(control->Snapshot().plans, 0u);
}

TEST_F(ControlPlanTest, ShortPlansAreOfTheLatencyClassAndLongOnesAreNot) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  for (const auto& [elements, urgent] : {std::pair<int64_t, bool>{1024, true}, {int64_t{16} << 20, false}}) {
    auto replies =
        PrepareAll(sessions, [&](int) { return AllReduce(group, std::to_string(elements), elements); });
    ASSERT_TRUE(replies[0].ok()) << replies[0].status().ToString();
    for (int gpu : {0, 1}) {
      const auto plans = engines->Look(gpu).plans;
      ASSERT_TRUE(plans.contains(replies[0]->plan().plan_id()));
      EXPECT_EQ(plans.at(replies[0]->plan().plan_id()).latency_class(), urgent)
          << elements << " elements, " << replies[0]->plan().predicted_us() << " us, "
          << replies[0]->plan().bytes_moved() << " bytes";
    }
  }
}

TEST_F(ControlPlanTest, DisagreementNamesTheFieldToAll) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  auto replies = PrepareAll(sessions, [&](int rank) { return AllReduce(group, "k", 100 + rank); });
  for (auto& reply : replies) {
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(reply.status().detail().reason, "FIELD_MISMATCH");
    EXPECT_THAT(reply.status().message(), HasSubstr("key 'k' of group 'tp'"));
  }
  EXPECT_TRUE(PrepareAll(sessions, [&](int) { return AllReduce(group, "k"); })[0].ok());
}

TEST_F(ControlPlanTest, AKeyThatTimedOutFailsOnAllRanks) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const Status late =
      control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(std::chrono::milliseconds(20)))
          .status();
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.detail().who, "rank 1");
  EXPECT_EQ(control->Prepare(sessions[1], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_TRUE(PrepareAll(sessions, [&](int) { return AllReduce(group, "k"); })[1].ok());
}

TEST_F(ControlPlanTest, ADeadRankAnswersPendingPrepares) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  auto pending = std::async(std::launch::async, [&] {
    return control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget));
  });
  std::this_thread::yield();
  control->SessionLost(IdOf(1), "its process has ended");
  const Status reported = pending.get().status();
  EXPECT_EQ(reported.code(), Code::kUnavailable);
  EXPECT_EQ(reported.detail().who, "rank 1");
}

TEST_F(ControlPlanTest, WhatIsKeptOfPlansIsCounted) {
  ControlOptions options;
  options.limits.plan_bytes = 8192;
  Start(2, options);
  const auto sessions = AttachAll(2);
  uint64_t group = Join(sessions);
  int plans = 0;
  uint64_t first = 0;
  const auto prepare = [&] {
    auto reply =
        std::move(PrepareAll(sessions, [&](int) { return AllReduce(group, std::to_string(plans)); })[0]);
    if (reply.ok()) ++plans;
    if (reply.ok() && first == 0) first = reply->plan().plan_id();
    return reply.status();
  };
  const auto fill = [&] {
    Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = prepare();
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
    EXPECT_EQ(status.detail().reason, "QUOTA_PLAN_BYTES");
    EXPECT_EQ(status.detail().limit, 8192);
  };
  fill();
  const int fitted = plans;
  EXPECT_GT(fitted, 1);
  for (const SessionRef& session : sessions) EXPECT_TRUE(control->ReleasePlan(session, first).ok());
  EXPECT_TRUE(prepare().ok());
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->LeaveGroup(session, group, Waiter::For(kWaitBudget)).ok());
  group = Join(sessions);
  plans = 0;
  fill();
  EXPECT_EQ(plans, fitted) << "the group that ended has given back what its plans had";
}

TEST_F(ControlPlanTest, PlansShareOneWorkspace) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  uint64_t unshared = 0, largest = 0;
  Result<v1::PrepareReply> last = Internal("none");
  for (int i = 1; i <= 5; ++i) {
    auto replies =
        PrepareAll(sessions, [&](int) { return AllReduce(group, "k" + std::to_string(i), 100000 * i); });
    ASSERT_TRUE(replies[0].ok()) << replies[0].status().ToString();
    unshared += 2 * AllocatedHalf(replies[0]->plan().workspace_bytes());
    largest = std::max(largest, replies[0]->plan().workspace_bytes());
    last = std::move(replies[0]);
  }
  ASSERT_GT(largest, 0u);
  EXPECT_EQ(last->plan().unshared_workspace_bytes(), unshared);
  const uint64_t half = engines->Look(1).workspace.at(group).half_bytes();
  EXPECT_GE(half, largest);
  EXPECT_EQ(last->plan().group_workspace_bytes(), 2 * half);
  // Every view has the same figures.
  EXPECT_EQ(control->SnapshotGroups()[0].workspace_bytes, 2 * half);
  EXPECT_EQ(control->SnapshotGroups()[0].unshared_workspace_bytes, unshared);
  for (const PlanSnapshot& plan : control->SnapshotPlans()) {
    EXPECT_EQ(plan.group_workspace_bytes, 2 * half);
    EXPECT_EQ(plan.unshared_workspace_bytes, unshared);
  }
}

TEST_F(ControlPlanTest, AnEnginesRestartBringsEverythingBackUnderANewGeneration) {
  Start(3);
  const auto sessions = AttachAll(3);
  const uint64_t group = Join(sessions);
  auto prepared = PrepareAll(sessions, [&](int) { return AllReduce(group, "k"); });
  ASSERT_TRUE(prepared[0].ok());
  const uint64_t plan = prepared[0]->plan().plan_id();
  v1::OpenChannelRequest open;
  open.set_gpu_uuid(control->options().topology.gpus[1].uuid);
  auto channel = control->OpenChannel(sessions[1], open, Waiter::For(kWaitBudget));
  ASSERT_TRUE(channel.ok()) << channel.status().ToString();
  v1::LaunchRequest launch;
  launch.set_plan_id(plan);
  auto launched = control->Launch(sessions[1], launch);
  ASSERT_TRUE(launched.ok());
  const auto before = engines->Look(1);

  engines->Kill(1);
  EXPECT_EQ(control->WaitLaunch(sessions[1], launched->launch_id(), Waiter::For(kWaitBudget)).code(),
            Code::kAborted);
  EXPECT_TRUE(Eventually([&] {
    const auto survivor = engines->Look(0);
    return survivor.broken.contains(group) && survivor.groups.empty() && survivor.plans.empty();
  }));
  EXPECT_EQ(engines->Look(0).broken.at(group).code(), static_cast<int>(Code::kAborted));
  EXPECT_TRUE(control->SnapshotChannels()[0].over);
  // A call in the meantime waits for the engine, within its deadline.
  EXPECT_EQ(control->Prepare(sessions[0], AllReduce(group, "new"), Waiter::For(std::chrono::milliseconds(20)))
                .status()
                .detail()
                .reason,
            "ENGINE_DOWN");

  engines->Restart(1);
  for (const auto& session : sessions) {
    auto event = NextOfKind(session, v1::Event::ENGINE_RESTARTED);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    EXPECT_EQ(event->generation(), 2u);
    EXPECT_EQ(event->group_id(), group);
  }
  for (int gpu = 0; gpu < 3; ++gpu) {
    const auto state = engines->Look(gpu);
    ASSERT_TRUE(state.groups.contains(group));
    EXPECT_EQ(state.groups.at(group).generation(), 2u);
    EXPECT_TRUE(state.plans.contains(plan));
    EXPECT_EQ(state.workspace.at(group).half_bytes(), before.workspace.at(group).half_bytes());
    EXPECT_NE(state.groups.at(group).signal_segments(0), before.groups.at(group).signal_segments(0));
  }
  EXPECT_EQ(control->SnapshotGroups()[0].state, "ready");
  EXPECT_TRUE(control->CloseChannel(sessions[1], channel->channel_id(), Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(control->OpenChannel(sessions[1], open, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(PrepareAll(sessions, [&](int) { return AllReduce(group, "new"); })[2].ok());
}

TEST_F(ControlPlanTest, LaunchesByGrpcEndWithTheEnginesStatus) {
  Start(2);
  const auto sessions = AttachAll(2);
  v1::LaunchRequest launch = PreparedLaunch(sessions);
  launch.set_tag("step 1");
  auto id = control->Launch(sessions[0], launch);
  ASSERT_TRUE(id.ok());
  const Status not_ended =
      control->WaitLaunch(sessions[0], id->launch_id(), Waiter::For(std::chrono::milliseconds(0)));
  EXPECT_EQ(not_ended.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(not_ended.detail().reason, "NOT_ENDED");
  EXPECT_EQ(control->WaitLaunch(sessions[1], id->launch_id(), Waiter::For(kWaitBudget)).code(),
            Code::kNotFound);
  ASSERT_TRUE(Eventually([&] { return engines->Look(0).launches.size() == 1; }));
  EXPECT_NE(engines->Look(0).launches[0].tag_digest(), 0u);
  engine::v1::LaunchDone done;
  done.set_launch_id(id->launch_id());
  done.set_code(static_cast<int>(Code::kUnavailable));
  done.set_message("rank 1 is gone");
  control->OnLaunchDone(1, done);  // another GPU's engine cannot end it
  EXPECT_EQ(
      control->WaitLaunch(sessions[0], id->launch_id(), Waiter::For(std::chrono::milliseconds(10))).code(),
      Code::kDeadlineExceeded);
  control->OnLaunchDone(0, done);
  EXPECT_EQ(control->WaitLaunch(sessions[0], id->launch_id(), Waiter::For(kWaitBudget)).message(),
            "rank 1 is gone");
  EXPECT_EQ(control->WaitLaunch(sessions[0], id->launch_id(), Waiter::For(kWaitBudget)).code(),
            Code::kNotFound);
  launch.set_plan_id(12345);
  EXPECT_EQ(control->Launch(sessions[0], launch).status().code(), Code::kNotFound);
}

TEST_F(ControlPlanTest, ALaunchForAnEngineWhoseEndNobodyHasNoticedIsAborted) {
  Start(2);
  const auto sessions = AttachAll(2);
  v1::LaunchRequest launch = PreparedLaunch(sessions);
  engines->Lose(0);
  auto id = control->Launch(sessions[0], launch);
  ASSERT_TRUE(id.ok());
  const Status ended = control->WaitLaunch(sessions[0], id->launch_id(), Waiter::For(kWaitBudget));
  EXPECT_EQ(ended.code(), Code::kAborted);
  EXPECT_EQ(ended.detail().reason, "ENGINE_RESTARTED");
}

TEST_F(ControlPlanTest, AnEngineThatAnotherOneWaitsForMustAnswer) {
  Start(2);
  engine::v1::PeerSilent silent;
  silent.set_gpu(1);
  control->OnPeerSilent(0, silent);
  ASSERT_TRUE(engines->demanded.contains(1));
  EXPECT_EQ(engines->demanded.size(), 1u);
  EXPECT_LE(engines->demanded[1], std::chrono::seconds(10));
}

TEST_F(ControlPlanTest, LateRanksAreReportedToTheGroup) {
  Start(2);
  const auto sessions = AttachAll(2);
  engine::v1::Late late;
  late.set_group_id(Join(sessions));
  late.set_plan_id(3);
  late.add_missing_ranks(1);
  control->OnLate(0, late);
  auto event = NextOfKind(sessions[0], v1::Event::LATE);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->rank(), 1);
  EXPECT_THAT(event->status().message(), HasSubstr("not arrived: rank 1"));
  EXPECT_THAT(event->status().ranks(), testing::ElementsAre(1));
}

TEST_F(ControlPlanTest, ALaunchThatCannotEndBreaksItsGroupForTheEnginesReason) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  engine::v1::LaunchFailed failed;
  failed.set_group_id(group);
  failed.set_plan_id(5);
  failed.set_launch(3);
  failed.set_code(static_cast<int>(Code::kDeadlineExceeded));
  failed.set_message("launch 3 of plan 5 has run too long");
  failed.set_breaks_group(true);
  failed.set_who("rank 1");
  failed.set_generation(99);
  control->OnLaunchFailed(0, failed);  // of another generation: that one has ended
  EXPECT_EQ(control->SnapshotGroups()[0].state, "ready");
  failed.set_generation(1);
  control->OnLaunchFailed(0, failed);
  control->OnLaunchFailed(1, failed);
  for (const SessionRef& session : sessions) {
    const auto event = NextOfKind(session, v1::Event::GROUP_BROKEN);
    ASSERT_TRUE(event.ok());
    EXPECT_EQ(event->status().code(), static_cast<int>(Code::kDeadlineExceeded));
    EXPECT_EQ(event->status().reason(), "LAUNCH_OVERDUE");
    EXPECT_EQ(event->status().who(), "rank 1");
    EXPECT_THAT(event->status().message(), HasSubstr("group 'tp': launch 3 of plan 5"));
  }
  for (int gpu : {0, 1}) {
    ASSERT_TRUE(Eventually([&] { return engines->Look(gpu).broken.contains(group); }));
    EXPECT_EQ(engines->Look(gpu).broken.at(group).code(), static_cast<int>(Code::kDeadlineExceeded));
  }
  EXPECT_EQ(control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status().code(),
            Code::kDeadlineExceeded);
  EXPECT_EQ(control->Snapshot().groups_broken_total, 1u);
}

TEST_F(ControlPlanTest, EvictEndsASessionAsADeathWould) {
  Start(2);
  const auto sessions = AttachAll(2);
  Join(sessions);
  EXPECT_EQ(control->Evict(99999).code(), Code::kNotFound);
  ASSERT_TRUE(control->Evict(IdOf(0), "an operator").ok());
  EXPECT_TRUE(NextOfKind(sessions[1], v1::Event::RANK_LOST).ok());
  EXPECT_EQ(control->Snapshot().sessions, 1u);
}

}  // namespace
}  // namespace tandem::daemon
