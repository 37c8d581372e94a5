// The ways in which a session ends, as its groups, its client and the counters see them; and events that come
// once.
#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DepartureTest : public ControlTest {};

// Dropping the last client without Detach closes the lease of a process that lives on.
TEST_F(DepartureTest, AClosedLeaseIsALeavingAndNotALoss) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  control->LeaseClosed(IdOf(1));
  const auto event = NextOfKind(sessions[0], v1::Event::RANK_LEFT);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_EQ(event->rank(), 1);
  ASSERT_TRUE(Eventually([&] { return control->Snapshot().sessions == 1; }));
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 0u);
  EXPECT_EQ(control->Snapshot().groups_broken_total, 0u);
  EXPECT_FALSE(engines->Look(0).broken.contains(group));
  const Status later =
      control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status();
  EXPECT_EQ(later.detail().reason, "RANK_LEFT") << later.ToString();
  EXPECT_THAT(later.detail().ranks, ElementsAre(1));
  EXPECT_EQ(later.detail().pid, 1001);
}

// Its launches would be left alone with memory that the process may free: then it is a loss.
TEST_F(DepartureTest, AClosedLeaseWithLaunchesInFlightIsALoss) {
  ControlOptions options;
  options.departure_deadline = std::chrono::milliseconds(50);
  Start(2, options);
  const auto sessions = AttachAll(2);
  Join(sessions);
  engines->fail = [](int, const engine::v1::Command& command) {
    return command.has_leave_group() ? DeadlineExceeded("its launches have not ended") : Status::Ok();
  };
  control->LeaseClosed(IdOf(1));
  const auto event = NextOfKind(sessions[0], v1::Event::RANK_LOST);
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_THAT(event->status().message(), HasSubstr("it closed its lease, and"));
  ASSERT_TRUE(Eventually([&] { return control->Snapshot().sessions == 1; }));
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 1u);
}

TEST_F(DepartureTest, AnEvictedClientHearsOfItAndIsCountedApart) {
  Start(2);
  v1::AttachRequest request;
  request.set_protocol_min(kProtocol);
  request.set_protocol_max(kProtocol);
  const auto attached = control->Attach({.uid = 7, .gid = 7, .pid = 1000}, request);
  ASSERT_TRUE(attached.ok());
  const SessionRef session = *control->Authenticate(attached->token());
  const uint64_t stream = control->OpenEvents(session);
  ASSERT_TRUE(control->Evict(attached->session_id(), "uid 0").ok());
  EXPECT_EQ(control->Snapshot().sessions_evicted_total, 1u);
  EXPECT_EQ(control->Snapshot().sessions_lost_total, 0u);
  // By its lease, by its token, by a call under way, and by its stream of events.
  ASSERT_EQ(lease.reasons().size(), 1u);
  v1::EmptyRequest empty;
  empty.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  for (const Status& reported : {lease.reasons()[0], control->Authenticate(attached->token()).status(),
                                 control->Empty(session, empty).status(),
                                 control->NextEvent(session, stream, Waiter::For(kWaitBudget)).status()}) {
    EXPECT_EQ(reported.detail().reason, "EVICTED") << reported.ToString();
    EXPECT_THAT(reported.message(), HasSubstr("the session was evicted by uid 0"));
  }
}

// Each rank's engine reports a late launch.
TEST_F(DepartureTest, ALateRankIsReportedOnce) {
  ControlOptions options;
  const auto warnings = std::make_shared<std::atomic<int>>(0);
  options.log = [warnings](LogSeverity severity, const std::string& text) {
    if (severity == LogSeverity::kWarning && text.find("not arrived") != std::string::npos) ++*warnings;
  };
  Start(4, options);
  const auto sessions = AttachAll(4);
  engine::v1::Late late;
  late.set_group_id(Join(sessions));
  late.set_plan_id(3);
  late.add_missing_ranks(3);
  for (uint64_t launch : {5, 6}) {
    late.set_launch(launch);
    for (int gpu : {0, 1, 2}) control->OnLate(gpu, late);
  }
  const uint64_t stream = control->OpenEvents(sessions[0]);
  for (const char* launch : {"launch 5", "launch 6"}) {
    const auto event = control->NextEvent(sessions[0], stream, Waiter::For(kWaitBudget));
    ASSERT_TRUE(event.ok() && event->has_value());
    EXPECT_THAT((*event)->status().message(), HasSubstr(launch));
  }
  const auto more = control->NextEvent(sessions[0], stream, Waiter::For(std::chrono::milliseconds(0)));
  ASSERT_TRUE(more.ok());
  EXPECT_FALSE(more->has_value());
  EXPECT_EQ(*warnings, 2);
}

}  // namespace
}  // namespace tandem::daemon
