#include <gmock/gmock.h>

#include <future>
#include <map>
#include <string>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

TEST_F(ControlTest, ACordonRefusesSessionsAndGroupsAndDisturbsNobody) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  control->SetAdmission(Admission::kCordoned);
  EXPECT_EQ(control->Snapshot().admission, Admission::kCordoned);
  v1::AttachRequest attach;
  attach.set_protocol_min(kProtocol);
  attach.set_protocol_max(kProtocol);
  EXPECT_EQ(control->Attach({.uid = 7, .gid = 7, .pid = 9}, attach).status().detail().reason, "CORDONED");
  EXPECT_EQ(control->JoinGroup(sessions[0], JoinRequest(2, 0, "other"), Waiter::For(kWaitBudget))
                .status()
                .detail()
                .reason,
            "CORDONED");
  for (const auto& plan : Together(2, [&](int rank) {
         return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "k"),
                                 Waiter::For(kWaitBudget));
       })) {
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  }
  const uint64_t stream = control->OpenEvents(sessions[0]);
  const auto event = control->NextEvent(sessions[0], stream, Waiter::For(std::chrono::milliseconds(0)));
  EXPECT_TRUE(event.ok() && !event->has_value()) << "no job is asked to end";
  control->SetAdmission(Admission::kOpen);
  EXPECT_TRUE(control->Attach({.uid = 7, .gid = 7, .pid = 9}, attach).ok());
}

TEST_F(ControlTest, ACordonedGpuTakesNoNewGroupsAndKeepsThoseThatItHas) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  control->SetGpuCordon(1, "XID 79");
  EXPECT_EQ(control->Snapshot().cordoned_gpus, (std::map<int, std::string>{{1, "XID 79"}}));
  // Both ranks hear why, and which GPU it is.
  for (const auto& reply : Together(2, [&](int rank) {
         return control->JoinGroup(sessions[static_cast<size_t>(rank)], JoinRequest(2, rank, "other"),
                                   Waiter::For(kWaitBudget));
       })) {
    EXPECT_EQ(reply.status().code(), Code::kUnavailable);
    EXPECT_EQ(reply.status().detail().reason, "GPU_CORDONED");
    EXPECT_EQ(reply.status().detail().gpu, 1);
    EXPECT_THAT(reply.status().message(), HasSubstr("GPU 1 is cordoned: no new groups on it (XID 79)"));
  }
  // The other GPU takes groups, and the group that is there goes on.
  EXPECT_TRUE(control->JoinGroup(sessions[0], JoinRequest(1, 0, "alone"), Waiter::For(kWaitBudget)).ok());
  for (const auto& plan : Together(2, [&](int rank) {
         return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "k"),
                                 Waiter::For(kWaitBudget));
       })) {
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  }
  control->SetGpuCordon(1, "");
  JoinOn({0, 1}, sessions, "again");
}

TEST_F(ControlTest, AGpuThatIsCordonedWhileItsRankWaitsTakesNoGroup) {
  Start(2);
  const auto sessions = AttachAll(2);
  auto waiting = std::async(std::launch::async, [&] {
    return control->JoinGroup(sessions[1], JoinRequest(2, 1, "both"), Waiter::For(kWaitBudget));
  });
  ASSERT_TRUE(Eventually([&] { return control->Snapshot().names == 1; }));
  control->SetGpuCordon(1, "XID 79");
  const auto last = control->JoinGroup(sessions[0], JoinRequest(2, 0, "both"), Waiter::For(kWaitBudget));
  EXPECT_EQ(last.status().detail().reason, "GPU_CORDONED");
  EXPECT_EQ(waiting.get().status().detail().reason, "GPU_CORDONED");
}

}  // namespace
}  // namespace tandem::daemon
