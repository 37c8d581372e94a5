// Placement of kernels, and the end of an engine that fell with every process on its GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

class FateTest : public ControlTest {
 protected:
  void StartCuda(int gpus) {
    ControlOptions options;
    options.backend = "cuda";
    options.placement = plan::PlanPlacement::kEngine;  // MPS matters to engines' plans
    Start(gpus, options);
    engines->mps = {.directory = "/run/mps", .answers = true, .device = 1, .inode = 7};
  }
  // A client that would meet the MPS server of directory `inode`; 0: none.
  SessionRef AttachAt(int pid, uint64_t inode) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    request.set_mps_pipe_directory("/mnt/mps");
    request.set_mps_answers(inode != 0);
    request.set_mps_device(1);
    request.set_mps_inode(inode);
    Result<v1::AttachReply> reply = control->Attach({.uid = 7, .gid = 7, .pid = pid}, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return *control->Authenticate(reply->token());
  }
  std::vector<Result<v1::JoinGroupReply>> JoinWith(const std::vector<SessionRef>& sessions,
                                                   OnSlowPlacement strictness) {
    const int world = static_cast<int>(sessions.size());
    return Together(world, [&](int rank) {
      v1::JoinGroupRequest request = JoinRequest(world, rank);
      request.set_on_slow_placement(static_cast<uint32_t>(strictness));
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
  }
  std::vector<Result<v1::PrepareReply>> PrepareAll(const std::vector<SessionRef>& sessions, uint64_t group) {
    return Together(static_cast<int>(sessions.size()), [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "ar"),
                              Waiter::For(kWaitBudget));
    });
  }
};

TEST_F(FateTest, ASharedServerIsFastAndSaysSo) {
  StartCuda(2);
  std::vector<SessionRef> sessions = {AttachAt(1, 7), AttachAt(2, 7)};
  auto joined = JoinWith(sessions, OnSlowPlacement::kError);
  ASSERT_TRUE(joined[0].ok()) << joined[0].status().ToString();
  EXPECT_FALSE(joined[0]->slow_placement());
  EXPECT_THAT(joined[0]->placement(), HasSubstr("share an MPS server"));
  auto plans = PrepareAll(sessions, joined[0]->group_id());
  ASSERT_TRUE(plans[1].ok()) << plans[1].status().ToString();
  EXPECT_THAT(plans[1]->plan().placement(), HasSubstr("share an MPS server"));
  EXPECT_EQ(plans[1]->plan().warnings_size(), 0);
}

TEST_F(FateTest, ASlowPlacementIsAllowedWarnedOfOrRefused) {
  StartCuda(2);
  std::vector<SessionRef> sessions = {AttachAt(1, 7), AttachAt(2, 0)};
  auto refused = JoinWith(sessions, OnSlowPlacement::kError);
  for (const auto& reply : refused) {
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.status().detail().reason, "SLOW_PLACEMENT");
    EXPECT_THAT(reply.status().message(), HasSubstr("rank 1's client runs without MPS"));
  }
  auto joined = JoinWith(sessions, OnSlowPlacement::kWarn);
  ASSERT_TRUE(joined[0].ok()) << joined[0].status().ToString();
  EXPECT_TRUE(joined[0]->slow_placement());
  auto plans = PrepareAll(sessions, joined[0]->group_id());
  ASSERT_TRUE(plans[0].ok()) << plans[0].status().ToString();
  EXPECT_TRUE(plans[0]->plan().slow_placement());
  ASSERT_EQ(plans[0]->plan().warnings_size(), 1);
  EXPECT_THAT(plans[0]->plan().warnings(0), HasSubstr("290 us"));
}

TEST_F(FateTest, AnEngineThatMovedToASpareServerRefusesStrictPlans) {
  StartCuda(2);
  std::vector<SessionRef> sessions = {AttachAt(1, 7), AttachAt(2, 7)};
  auto joined = JoinWith(sessions, OnSlowPlacement::kError);
  ASSERT_TRUE(joined[0].ok());
  engines->mps.inode = 8;
  for (const auto& plan : PrepareAll(sessions, joined[0]->group_id())) {
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().detail().reason, "SLOW_PLACEMENT");
  }
}

TEST_F(FateTest, RanksMustAgreeOnStrictness) {
  StartCuda(2);
  std::vector<SessionRef> sessions = {AttachAt(1, 7), AttachAt(2, 7)};
  auto replies = Together(2, [&](int rank) {
    v1::JoinGroupRequest request = JoinRequest(2, rank);
    request.set_on_slow_placement(static_cast<uint32_t>(rank));
    return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
  });
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(reply.status().detail().field, "on_slow_placement");
  }
}

TEST_F(FateTest, ALostContextBreaksTheGroupsOfThatGpuAndNoOthers) {
  StartCuda(4);
  std::vector<SessionRef> hit = {AttachAt(1, 7), AttachAt(2, 7)}, spared = {AttachAt(3, 7), AttachAt(4, 7)};
  auto joined = JoinWith(hit, OnSlowPlacement::kAllow);
  ASSERT_TRUE(joined[0].ok());
  auto others = Together(2, [&](int rank) {
    v1::JoinGroupRequest request = JoinRequest(2, rank, "other");
    request.set_gpu_uuid(control->options().topology.gpus[static_cast<size_t>(rank + 2)].uuid);
    return control->JoinGroup(spared[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(others[0].ok());
  engines->Kill(0, true);
  auto event = NextOfKind(hit[1], v1::Event::GROUP_BROKEN);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_EQ(event->status().reason(), "GPU_CONTEXT_LOST");
  EXPECT_EQ(event->status().who(), "gpu 0");
  for (const auto& plan : PrepareAll(hit, joined[0]->group_id())) {
    EXPECT_EQ(plan.status().code(), Code::kUnavailable);
    EXPECT_THAT(plan.status().message(), HasSubstr("rank 0"));
  }
  auto plans = PrepareAll(spared, others[0]->group_id());
  EXPECT_TRUE(plans[0].ok()) << plans[0].status().ToString();
  // Back again, the group is open for its next incarnation; the sessions have gone on.
  engines->Restart(0);
  auto again = JoinWith(hit, OnSlowPlacement::kAllow);
  ASSERT_TRUE(again[0].ok()) << again[0].status().ToString();
  EXPECT_EQ(again[0]->incarnation(), 2u);
}

}  // namespace
}  // namespace tandem::daemon
