// Ends while a call still works: a group while its memory is made, an engine while its group is installed, a
// tensor during its barrier, a session with two slots. Nothing may stay behind.
#include <gmock/gmock.h>

#include <atomic>

#include "daemon/control/records/registry.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;
using C = engine::v1::Command;

class ControlEndsTest : public ControlTest {
 protected:
  Status MakeSymmetric(const SessionRef& session, uint64_t tensor, uint64_t group,
                       Waiter waiter = Waiter::For(kWaitBudget)) {
    return Rendezvous(session, tensor, group, waiter).status();
  }
  // All ranks prepare an all-reduce, and get it.
  void ExpectPrepared(const std::vector<SessionRef>& sessions, uint64_t group, const std::string& key) {
    const auto plans = Together(static_cast<int>(sessions.size()), [&](int rank) {
      return control
          ->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, key), Waiter::For(kWaitBudget))
          .status();
    });
    for (const Status& status : plans) EXPECT_TRUE(status.ok()) << status.ToString();
  }
  // Rank 1's clean end is why the group has ended: `session`, which stays, gets that at once.
  void ExpectEndedByRank1(const SessionRef& session, uint64_t group) {
    const uint64_t stream = control->OpenEvents(session);
    const auto next = [&] {
      const auto event = control->NextEvent(session, stream, Waiter::For(std::chrono::milliseconds(0)));
      return event.ok() && event->has_value() ? **event : v1::Event();
    };
    EXPECT_EQ(next().kind(), v1::Event::RANK_LEFT);
    const v1::Event broken = next();
    EXPECT_EQ(broken.kind(), v1::Event::GROUP_BROKEN);
    EXPECT_EQ(broken.status().reason(), "RANK_LEFT");
    EXPECT_EQ(broken.status().who(), "rank 1");
    EXPECT_EQ(next().kind(), v1::Event::UNSPECIFIED);
    ASSERT_EQ(control->SnapshotGroups().size(), 1u);
    EXPECT_THAT(control->SnapshotGroups()[0].state_reason, HasSubstr("rank 1 (pid 1001) has left"));
    const Status later = control->Prepare(session, AllReduce(group, "ar"), Waiter::For(kWaitBudget)).status();
    EXPECT_EQ(later.detail().reason, "RANK_LEFT") << later.ToString();
  }
  // Groups, memory and what is charged for it.
  void ExpectNothingLeft() {
    EXPECT_TRUE(Eventually([&] {
      const ControlSnapshot all = control->Snapshot();
      return all.groups == 0 && all.segment_bytes == 0;
    })) << control->Snapshot().groups
        << " groups, " << control->Snapshot().segment_bytes << " bytes";
    for (int gpu = 0; gpu < engines->count(); ++gpu) {
      EXPECT_TRUE(Eventually([&] { return engines->Look(gpu).segments.empty(); })) << "GPU " << gpu;
      EXPECT_TRUE(Eventually([&] { return engines->Look(gpu).registrations.empty(); })) << "GPU " << gpu;
    }
  }
};

TEST_F(ControlEndsTest, AllRanksDieWhileTheirFirstTensorIsMade) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  HoldAt(C::kAddSegment, 1);
  gate.Shut();
  auto met = std::async(std::launch::async, [&] {
    return Together(2, [&](int rank) {
      const SessionRef& session = sessions[static_cast<size_t>(rank)];
      return MakeSymmetric(session, Empty(session, rank), group);
    });
  });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  for (int rank = 0; rank < 2; ++rank) control->SessionLost(IdOf(rank), "its process has ended");
  gate.Open();
  for (const Status& status : met.get()) EXPECT_FALSE(status.ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, AllRanksDieWhileTheirGroupIsRestored) {
  Start(2);
  const auto sessions = AttachAll(2);
  Join(sessions);
  HoldAt(C::kAddSegment, 0);
  engines->Kill(1);
  gate.Shut();
  engines->Restart(1);
  ASSERT_TRUE(
      Eventually([&] { return gate.held() > 0; }));  // the new control segments, mapped by the other engine
  for (int rank = 0; rank < 2; ++rank) control->SessionLost(IdOf(rank), "its process has ended");
  gate.Open();
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, AGroupAtItsQuotaIsRestored) {
  ControlOptions options;
  options.limits.segment_bytes = uint64_t{12} << 20;  // two control segments
  options.limits.descriptors = 4;                     // theirs, and those of two sessions
  Start(2, options);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  engines->Kill(1);
  engines->Restart(1);
  EXPECT_TRUE(NextOfKind(sessions[0], v1::Event::ENGINE_RESTARTED).ok());
  EXPECT_EQ(control->SnapshotGroups().at(0).generation, 2u);
  for (int gpu = 0; gpu < 2; ++gpu) {
    EXPECT_TRUE(engines->Look(gpu).groups.contains(group)) << "GPU " << gpu;
    EXPECT_TRUE(Eventually([&] { return engines->Look(gpu).segments.size() == 2; })) << "GPU " << gpu;
  }
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, AnEngineEndsAfterItsPartOfARestoration) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  HoldAt(C::kAddGroup, 1);
  engines->Kill(1);
  gate.Shut();
  engines->Restart(1);
  // Engine 0 has the new generation, engine 1 is receiving it.
  ASSERT_TRUE(Eventually([&] {
    const auto state = engines->Look(0);
    return gate.held() > 0 && state.groups.contains(group) && state.groups.at(group).generation() == 2;
  }));
  engines->Kill(0);
  engines->Restart(0);
  gate.Open();
  for (int gpu = 0; gpu < 2; ++gpu) {
    EXPECT_TRUE(Eventually([&] {
      const auto state = engines->Look(gpu);
      return state.groups.contains(group) && state.groups.at(group).generation() > 2;
    })) << "GPU "
        << gpu;
  }
  ExpectPrepared(sessions, group, "ar");
}

TEST_F(ControlEndsTest, ARankLeavesWhileAnEngineIsAway) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  engines->Kill(0);
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  ExpectEndedByRank1(sessions[0], group);
  engines->Restart(0);
  ASSERT_TRUE(control->LeaveGroup(sessions[0], group, Waiter::For(kWaitBudget)).ok());
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, AnEngineEndsAfterARankHasLeft) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  engines->Kill(0);
  ExpectEndedByRank1(sessions[0], group);
  engines->Restart(0);
  ASSERT_TRUE(control->LeaveGroup(sessions[0], group, Waiter::For(kWaitBudget)).ok());
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, AnEngineEndsAfterItsPartOfAJoin) {
  Start(2);
  const auto sessions = AttachAll(2);
  HoldAt(C::kAddGroup, 1);
  gate.Shut();
  auto joining = std::async(std::launch::async, [&] { return Join(sessions); });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0 && !engines->Look(0).groups.empty(); }));
  engines->Kill(0);
  engines->Restart(0);
  gate.Open();
  const uint64_t group = joining.get();
  for (int gpu = 0; gpu < 2; ++gpu) {
    EXPECT_TRUE(Eventually([&] { return engines->Look(gpu).groups.contains(group); })) << "GPU " << gpu;
  }
  ExpectPrepared(sessions, group, "ar");
}

TEST_F(ControlEndsTest, ARegistrationThatOneEngineRefusesIsTakenBack) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  std::atomic<bool> refuses = true;
  engines->fail = [&](int gpu, const C& command) {
    return gpu == 1 && command.has_add_registration() && refuses ? Internal("planted") : Status::Ok();
  };
  std::vector<uint64_t> tensors = {Empty(sessions[0], 0), Empty(sessions[1], 1)};
  auto met = Together(2, [&](int rank) {
    return MakeSymmetric(sessions[static_cast<size_t>(rank)], tensors[static_cast<size_t>(rank)], group);
  });
  for (const Status& status : met) EXPECT_THAT(status.message(), HasSubstr("planted"));
  EXPECT_TRUE(Eventually([&] { return engines->Look(0).registrations.empty(); }));
  // The tensors are as before: they can meet again.
  refuses = false;
  met = Together(2, [&](int rank) {
    return MakeSymmetric(sessions[static_cast<size_t>(rank)], tensors[static_cast<size_t>(rank)], group);
  });
  for (const Status& status : met) EXPECT_TRUE(status.ok()) << status.ToString();
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, ATensorFreedWhileItsRankWaits) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const uint64_t freed = Empty(sessions[0], 0), other = Empty(sessions[1], 1);
  auto first = std::async(std::launch::async, [&] { return MakeSymmetric(sessions[0], freed, group); });
  std::this_thread::sleep_for(
      std::chrono::milliseconds(20));  // most likely it waits; if not, it gets NOT_FOUND
  EXPECT_TRUE(control->Free(sessions[0], freed).ok());
  const Status reported = first.get();
  EXPECT_TRUE(reported.code() == Code::kFailedPrecondition || reported.code() == Code::kNotFound)
      << reported.ToString();
  const Status late = MakeSymmetric(sessions[1], other, group, Waiter::For(std::chrono::milliseconds(100)));
  EXPECT_FALSE(late.ok());
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, ATensorFreedWhileItsMemoryIsMade) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  HoldAt(C::kAddSegment, 1);
  gate.Shut();
  std::vector<uint64_t> tensors = {Empty(sessions[0], 0), Empty(sessions[1], 1)};
  auto met = std::async(std::launch::async, [&] {
    return Together(2, [&](int rank) {
      return MakeSymmetric(sessions[static_cast<size_t>(rank)], tensors[static_cast<size_t>(rank)], group);
    });
  });
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0; }));
  EXPECT_TRUE(control->Free(sessions[0], tensors[0]).ok());
  gate.Open();
  for (const Status& status : met.get()) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("rank 0 freed its tensor"));
  }
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, ATensorThatMeetsInTwoGroupsAtOnceHasOneMemory) {
  Start(2);
  const auto sessions = AttachAll(2);
  const std::vector<uint64_t> groups = {Join(sessions, "a"), Join(sessions, "b")};
  const std::vector<uint64_t> tensors = {Empty(sessions[0], 0), Empty(sessions[1], 1)};
  ASSERT_TRUE(Eventually(
      [&] { return engines->Look(0).segments.size() == 4; }));  // two control segments of each group
  HoldAt(C::kAddSegment, 1);
  gate.Shut();
  const auto meet = [&](uint64_t group) {
    return std::async(std::launch::async, [&, group] {
      return Together(2, [&, group](int rank) {
        return Rendezvous(sessions[static_cast<size_t>(rank)], tensors[static_cast<size_t>(rank)], group,
                          Waiter::For(kWaitBudget));
      });
    });
  };
  auto first = meet(groups[0]);
  ASSERT_TRUE(Eventually([&] { return gate.held() > 0 && engines->Look(0).segments.size() == 6; }));
  auto second = meet(groups[1]);
  ASSERT_TRUE(Eventually([&] { return engines->Look(0).segments.size() == 7; }));  // it makes memory too
  gate.Open();
  const auto in_first = first.get(), in_second = second.get();
  for (const auto* replies : {&in_first, &in_second}) {
    for (const auto& reply : *replies) ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(in_first[0]->segment_ids(rank), in_second[0]->segment_ids(rank)) << "rank " << rank;
    EXPECT_EQ(in_first[0]->segment_ids(rank), in_second[1]->segment_ids(rank)) << "rank " << rank;
  }
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, ASessionHasOneSlotOfAGroup) {
  Start(2);
  const auto sessions = AttachAll(1);
  auto joined = Together(2, [&](int rank) {
    return control->JoinGroup(sessions[0], JoinRequest(2, rank), Waiter::For(kWaitBudget)).status();
  });
  for (const Status& status : joined) EXPECT_EQ(status.code(), Code::kAlreadyExists) << status.ToString();
  EXPECT_TRUE(control->Detach(sessions[0], Waiter::For(kWaitBudget)).ok());
  ExpectNothingLeft();
}

TEST_F(ControlEndsTest, RendezvousThatOneRankNeverComesToAreLimited) {
  ControlOptions options;
  options.limits.rendezvous_per_group = 8;
  Start(2, options);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  const Waiter brief = Waiter::For(std::chrono::milliseconds(1));
  for (int i = 0; i < 8; ++i) {
    const Status late = control->Prepare(sessions[0], AllReduce(group, std::to_string(i)), brief).status();
    EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.ToString();
    EXPECT_EQ(MakeSymmetric(sessions[0], Empty(sessions[0], 0), group, brief).code(),
              Code::kDeadlineExceeded);
  }
  const Status prepare = control->Prepare(sessions[0], AllReduce(group, "more"), brief).status();
  EXPECT_EQ(prepare.code(), Code::kResourceExhausted);
  EXPECT_EQ(prepare.detail().reason, "QUOTA_RENDEZVOUS");
  EXPECT_EQ(MakeSymmetric(sessions[0], Empty(sessions[0], 0), group, brief).code(), Code::kResourceExhausted);
  // The other rank hears of one, and there is room for one.
  EXPECT_EQ(control->Prepare(sessions[1], AllReduce(group, "3"), brief).status().code(),
            Code::kDeadlineExceeded);
  ExpectPrepared(sessions, group, "more");
}

TEST(Registry, IdsDifferInWhatTheOrderLogKeeps) {
  Registry registry{ControlLimits()};
  RegistryLock lock(registry);
  registry.next_id = 5;
  const auto group = std::make_shared<GroupRecord>(nullptr);
  group->id = registry.NewGroupId();
  registry.groups[group->id] = group;
  EXPECT_TRUE(registry.Has(*group));
  registry.next_id = group->id + (uint64_t{1} << 24);
  EXPECT_EQ(registry.NewGroupId(), group->id + (uint64_t{1} << 24) + 1);
  // Plans' begin again, past those that live.
  registry.next_plan_id = (1 << 24) - 1;
  registry.plan_groups[1] = group;
  EXPECT_EQ(registry.NewPlanId(), (1u << 24) - 1);
  EXPECT_EQ(registry.NewPlanId(), 2u);
}

TEST_F(ControlEndsTest, NamesThatNeverBecameAGroupLeaveNothing) {
  ControlOptions options;
  options.verdict_memory = std::chrono::milliseconds(0);
  Start(1, options);
  const auto session = Attach();
  v1::JoinGroupRequest request = JoinRequest(2, 0);
  for (int i = 0; i < 100; ++i) {
    request.set_name("late" + std::to_string(i));
    EXPECT_FALSE(control->JoinGroup(session, request, Waiter::For(std::chrono::milliseconds(1))).ok());
    request.set_gpu_uuid("none");
    EXPECT_FALSE(control->JoinGroup(session, request, Waiter::For(kWaitBudget)).ok());
    request.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  }
  EXPECT_EQ(control->Snapshot().names, 0u);
}

}  // namespace
}  // namespace tandem::daemon
