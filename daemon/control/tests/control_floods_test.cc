// A user who makes many of something reaches the user's own bound, and other users' things stay.
#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlFloodsTest : public ControlTest {
 protected:
  SessionRef AttachAs(uint32_t uid) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    const auto reply = control->Attach({.uid = uid, .gid = 7, .pid = 1}, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? *control->Authenticate(reply->token()) : nullptr;
  }
  Status JoinNow(const SessionRef& session, const v1::JoinGroupRequest& request, int milliseconds = 30000) {
    return control->JoinGroup(session, request, Waiter::For(std::chrono::milliseconds(milliseconds)))
        .status();
  }
};

TEST_F(ControlFloodsTest, FailedJoinsOfOneUserDriveOutNobodysVerdict) {
  Start(2);
  const SessionRef first = AttachAs(7), late = AttachAs(7), flooder = AttachAs(8);
  const Status verdict = JoinNow(first, JoinRequest(2, 0), 1);
  EXPECT_EQ(verdict.detail().reason, "RANK_LATE") << verdict.ToString();
  for (int i = 0; i < 6000; ++i) {
    v1::JoinGroupRequest request = JoinRequest(2, 0, "name " + std::to_string(i));
    request.set_gpu_uuid("no such GPU");
    ASSERT_EQ(JoinNow(flooder, request).code(), Code::kNotFound);
  }
  EXPECT_LE(control->Snapshot().names, 1030u);
  // Without the verdict the late rank would wait for one that has gone.
  EXPECT_EQ(JoinNow(late, JoinRequest(2, 1)), verdict);
}

TEST_F(ControlFloodsTest, GroupsOfOneUserDriveOutNobodysIncarnation) {
  Start(1);
  const SessionRef user = AttachAs(7), flooder = AttachAs(8);
  const auto make_and_leave = [this](const SessionRef& session, const std::string& name) {
    const auto made = control->JoinGroup(session, JoinRequest(1, 0, name), Waiter::For(kWaitBudget));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    if (!made.ok()) return uint64_t{0};
    EXPECT_TRUE(control->LeaveGroup(session, made->group_id(), Waiter::For(kWaitBudget)).ok());
    return static_cast<uint64_t>(made->incarnation());
  };
  EXPECT_EQ(make_and_leave(user, "tp"), 1u);
  for (int i = 0; i < 4200; ++i) make_and_leave(flooder, "name " + std::to_string(i));
  EXPECT_EQ(make_and_leave(user, "tp"), 2u);
  EXPECT_EQ(make_and_leave(flooder, "name 4199"), 2u);
  EXPECT_EQ(make_and_leave(flooder, "name 0"), 1u);  // its own oldest has gone
  EXPECT_LE(control->Snapshot().names, 1030u);
}

TEST_F(ControlFloodsTest, LaunchesOfOneUserAreBoundedInAllItsSessions) {
  ControlOptions options;
  options.limits.launches_per_uid = 3;
  options.limits.pending_launches_per_session = 2;
  Start(1, options);
  const SessionRef first = AttachAs(8), second = AttachAs(8), other = AttachAs(7);
  const auto request_of = [this](const SessionRef& session, const std::string& name) {
    const auto group = control->JoinGroup(session, JoinRequest(1, 0, name), Waiter::For(kWaitBudget));
    EXPECT_TRUE(group.ok());
    const auto plan = control->Prepare(session, AllReduce(group->group_id(), "ar"), Waiter::For(kWaitBudget));
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    v1::LaunchRequest request;
    request.set_plan_id(plan->plan().plan_id());
    return request;
  };
  const v1::LaunchRequest one = request_of(first, "one"), two = request_of(second, "two"),
                          theirs = request_of(other, "theirs");
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(control->Launch(first, one).ok());
  EXPECT_EQ(control->Launch(first, one).status().detail().reason, "QUOTA_PENDING_LAUNCHES");
  EXPECT_TRUE(control->Launch(second, two).ok());
  const Status refused = control->Launch(second, two).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.detail().reason, "QUOTA_PENDING_LAUNCHES_PER_UID");
  EXPECT_EQ(refused.detail().who, "uid 8");
  EXPECT_THAT(refused.message(), HasSubstr("limit 3"));
  EXPECT_TRUE(control->Launch(other, theirs).ok());
  // A session's end gives its launches back.
  EXPECT_TRUE(control->Detach(first, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(control->Launch(second, two).ok());
}

TEST_F(ControlFloodsTest, EventsThatNobodyReadsAreTheLatestOnes) {
  ControlOptions options;
  options.limits.events_per_session = 4;
  Start(2, options);
  const SessionRef silent = AttachAs(7);
  for (int i = 0; i < 10; ++i) {
    const SessionRef peer = AttachAs(7);
    const std::vector<SessionRef> both = {silent, peer};
    Join(both, "group " + std::to_string(i));
    control->SessionLost(peer->id, "for the test");
  }
  const uint64_t dropped = control->Snapshot().events_dropped_total;
  EXPECT_GE(dropped, 10u - 4u);
  const uint64_t stream = control->OpenEvents(silent);
  std::vector<std::string> texts;
  for (;;) {
    const auto event = control->NextEvent(silent, stream, Waiter::For(std::chrono::milliseconds(0)));
    ASSERT_TRUE(event.ok());
    if (!event->has_value()) break;
    texts.push_back((*event)->status().message());
  }
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_THAT(texts.back(), HasSubstr("group 9"));
  EXPECT_EQ(control->Snapshot().events_dropped_total, dropped);
  control->SessionLost(silent->id, "for the test");
  EXPECT_EQ(control->Snapshot().events_dropped_total, dropped);
}

}  // namespace
}  // namespace tandem::daemon
