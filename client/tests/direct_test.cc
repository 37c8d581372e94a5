// Launches by gRPC as the handles see them, and calls that fail half-way.
#include <gtest/gtest.h>

#include <vector>

#include "client/tests/fake_daemon_test.h"
#include "client/tests/slow_device.h"

namespace tandem::client {
namespace {

Status NotEnded() {
  return DeadlineExceeded("the launch has not ended yet")
      .WithDetail({.reason = "NOT_ENDED", .who = {}, .field = {}});
}

class DirectTest : public HostClientTest {};

TEST_F(DirectTest, AQueryAsksOnceAndWaitsForNothing) {
  std::vector<Milliseconds> asked;
  daemon_->wait_launch = [&](uint64_t, Milliseconds deadline) {
    asked.push_back(deadline);
    return NotEnded();
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_FALSE(plan_->Query().value());
  EXPECT_EQ(asked, std::vector<Milliseconds>{Milliseconds(0)});
}

TEST_F(DirectTest, ALaunchThatHasNotEndedIsAskedForOnce) {
  int asked = 0;
  daemon_->wait_launch = [&](uint64_t, Milliseconds) {
    ++asked;
    return NotEnded();
  };
  const uint64_t launch = plan_->LaunchWithoutStream({}).value();
  EXPECT_EQ(plan_->WaitLaunch(launch, Milliseconds(5)).detail().reason, "NOT_ENDED");
  EXPECT_EQ(asked, 1);
}

TEST_F(DirectTest, AnotherPlansLaunchIsNotToldByThisOne) {
  auto other = group_->Prepare("other", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  std::vector<uint64_t> reported;
  daemon_->wait_launch = [&](uint64_t launch, Milliseconds) {
    reported.push_back(launch);
    return Internal("the launch failed");
  };
  const uint64_t launch = plan_->LaunchWithoutStream({}).value();
  EXPECT_EQ(other->WaitLaunch(launch, kLong).code(), Code::kNotFound);
  EXPECT_TRUE(reported.empty());
  EXPECT_EQ(plan_->Wait(kLong).message(), "the launch failed");
  EXPECT_EQ(plan_->WaitLaunch(launch, kLong).code(), Code::kNotFound) << "told";
  EXPECT_EQ(reported, std::vector<uint64_t>{launch});
}

TEST_F(DirectTest, AWaitThatMeetsAFailureWaitsForTheRestAllTheSame) {
  std::vector<uint64_t> waited;
  daemon_->wait_launch = [&](uint64_t launch, Milliseconds) {
    waited.push_back(launch);
    return waited.size() == 1 ? Internal("the launch failed") : Status::Ok();
  };
  std::vector<uint64_t> launches;
  for (int i = 0; i < 3; ++i) launches.push_back(plan_->LaunchWithoutStream({}).value());
  // A failure of a launch on a stream is reported first, and is no reason to leave the others either.
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Finish(Engine(), Arrive(Engine()), Code::kDeadlineExceeded, "rank 1 has not launched");
  EXPECT_EQ(plan_->Wait(kLong).message(), "rank 1 has not launched");
  EXPECT_EQ(waited, launches);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

// Other ranks' next launches are stopped by it: this one must hear of it, whatever has failed before.
TEST_F(DirectTest, ARestartIsToldByTheWaitThatMeetsItBehindAnotherFailure) {
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Finish(Engine(), Arrive(Engine()), Code::kDeadlineExceeded, "rank 1 has not launched");
  Arrive(Engine());
  Engine()->words().Release(Aborted("the engine has ended"));
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kAborted);
  TellRestart(2);
  std::vector<uint64_t> waited;
  daemon_->wait_launch = [&](uint64_t launch, Milliseconds) {
    waited.push_back(launch);
    return waited.size() == 1 ? Internal("the launch failed") : Aborted("the engine has ended");
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kAborted);
  EXPECT_EQ(waited.size(), 2u);
}

TEST_F(DirectTest, AWaitThatEndsBeforeItsLaunchSaysSo) {
  daemon_->wait_launch = [&](uint64_t, Milliseconds) { return NotEnded(); };
  ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_EQ(plan_->Wait(Milliseconds(1)).detail().reason, "NOT_ENDED");
  EXPECT_EQ(plan_->Wait(Milliseconds(1)).detail().reason, "NOT_ENDED") << "it is still waited for";
}

TEST_F(DirectTest, AReleaseThatTheDaemonHasNotHeardCanBeMadeAgain) {
  daemon_->gone = true;
  EXPECT_EQ(plan_->Release().code(), Code::kUnavailable);
  daemon_->gone = false;
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok()) << "the plan goes on";
  Finish(Engine(), Arrive(Engine()));
  EXPECT_TRUE(plan_->Release().ok());
  EXPECT_EQ(plan_->Release().code(), Code::kFailedPrecondition);
}

TEST_F(DirectTest, AChannelThatCannotBeUsedIsGivenBack) {
  auto device = std::make_shared<SlowDevice>();
  ConnectAnew(device);
  device->pin_error = ResourceExhausted("no pages can be pinned");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(plan_->Launch(stream_.get(), {}).message(), "no pages can be pinned");
  EXPECT_EQ(daemon_->closed_channels.size(), 3u);
  device->pin_error = Status::Ok();
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Finish(Engine(3), Arrive(Engine(3)));
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

// Events that come before their group's join has returned are kept, also where many came for groups that
// nobody has joined.
TEST_F(DirectTest, AnEarlyBreakIsHeardThoughOthersCameForNobody) {
  MakeDaemon("host");
  auto client = ConnectThrough(std::make_unique<FakeControl>(daemon_), {}).value();
  ControlEvent broken;
  broken.event.kind = ClientEvent::Kind::kGroupBroken;
  broken.event.status = Unavailable("rank 1 was lost");
  for (uint64_t group = 1; group <= 10; ++group) {
    for (int i = 0; i < 200; ++i) {
      broken.event.group_id = group;
      daemon_->Tell(broken);
    }
  }
  for (uint64_t group = 1000; group < 1100; ++group) {
    broken.event.group_id = group;
    daemon_->Tell(broken);
  }
  broken.event.group_id = 11;  // the fake's
  daemon_->Tell(broken);
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.world_size = 2;
  auto group = client->JoinGroup(join).value();
  auto plan = group->Prepare("empty", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  EXPECT_EQ(plan->Launch(stream_.get(), {}).message(), "rank 1 was lost");
}

}  // namespace
}  // namespace tandem::client
