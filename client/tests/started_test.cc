// Whether a launch that an engine's end has cut off had started, as its status reports it.
#include <gtest/gtest.h>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

Status Restarted() {
  return Aborted("the engine of GPU 2 ended").WithDetail({.reason = "ENGINE_RESTARTED", .gpu = 2});
}

class StartedTest : public HostClientTest {};

TEST_F(StartedTest, ALaunchThatTheEngineHadBegunHadStarted) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  const LaunchEntry entry = Arrive(Engine());
  Engine()->PublishOk(entry.sequence, 1);  // as engines do before they enqueue the first step
  Engine()->words().Release(Restarted());
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  const Status status = plan_->Wait(kLong);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.detail().started, true);
  EXPECT_EQ(status.detail().gpu, 2);
  EXPECT_EQ(status.detail().who, "gpu 2");
}

// A peer may have begun what this rank's engine had not.
TEST_F(StartedTest, OfALaunchThatHadArrivedNobodyKnows) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Arrive(Engine());
  Engine()->words().Release(Restarted());
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  const Status status = plan_->Wait(kLong);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.detail().started, std::nullopt);
}

TEST_F(StartedTest, ALaunchThatHadNotArrivedHadNotStarted) {
  std::atomic<uint64_t> gate{0};
  auto other = group_->Prepare("other", OpRequest{.op = Op::kEmpty}).value();
  ASSERT_TRUE(stream_->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Engine()->words().Release(Restarted());
  const Status status = plan_->Wait(kLong);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.detail().started, false);
  gate = 1;
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
}

TEST_F(StartedTest, AnEnginesOwnVerdictCrosses) {
  for (const std::optional<bool> started :
       {std::optional(true), std::optional(false), std::optional<bool>()}) {
    ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
    const LaunchEntry entry = Arrive(Engine());
    Engine()->PublishStatus(
        entry.sequence,
        Unavailable("ranks have gone").WithDetail({.ranks = {1, 3}, .pid = 4194303, .started = started}), 1);
    Engine()->Complete(entry.sequence);
    const Status status = plan_->Wait(kLong);
    EXPECT_EQ(status.detail().started, started);
    EXPECT_EQ(status.detail().ranks, (std::vector<uint32_t>{1, 3}));
    EXPECT_EQ(status.detail().who, "ranks 1, 3");
    EXPECT_EQ(status.detail().pid, 4194303);
  }
}

// One status is returned for all launches that a restart ends: it is about all of them.
TEST_F(StartedTest, OneStatusIsAboutAllLaunchesOfThePlan) {
  auto second = HostStream::Create().value();
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  std::atomic<uint64_t> gate{0};
  ASSERT_TRUE(second->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(plan_->Launch(second.get(), {}).ok());
  const LaunchEntry entry = Arrive(Engine(0));
  Engine(0)->PublishOk(entry.sequence, 1);
  for (size_t engine : {1, 0}) Engine(engine)->words().Release(Restarted());
  gate = 1;
  ASSERT_TRUE(second->Synchronize(kLong).ok());
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  // By the stream whose launch had not begun.
  const Status status = plan_->Launch(second.get(), {});
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.detail().started, true) << "the other stream's launch had written";
}

TEST_F(StartedTest, AWaitForSeveralReportsTheWorst) {
  daemon_->wait_launch = [calls = 0](uint64_t, Milliseconds) mutable {
    return Restarted().WithStarted(++calls == 2 ? std::optional(true) : std::optional(false));
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_EQ(plan_->Wait(kLong).detail().started, true);
}

TEST_F(StartedTest, ACallThatOnlyHearsOfARestartHasStartedNothing) {
  TellRestart(2);
  const Status status = plan_->Launch(stream_.get(), {});
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(status.detail().started, false);
}

}  // namespace
}  // namespace tandem::client
