// Failures of launches reach the user once each, by a call that still makes its launch. An engine's restart
// reaches the user by a call that does not.
#include <gtest/gtest.h>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class FailuresTest : public HostClientTest {};

TEST(GroupStateTest, ARestartThatAnotherCallHasToldIsNotAwaitedAgain) {
  ClientGroupState group(11, 1);
  group.Learn(2);
  EXPECT_TRUE(group.Outdated());
  EXPECT_TRUE(group.MoveOn(1));
  EXPECT_FALSE(group.MoveOn(1)) << "the second of two threads, or the second launch that the restart cut off";
  EXPECT_FALSE(group.Outdated());
  Result<uint64_t> generation = group.ForLaunch(Milliseconds(0));
  ASSERT_TRUE(generation.ok()) << generation.status().ToString();
  EXPECT_EQ(*generation, 2u);
}

TEST(GroupStateTest, ARestartThatIsToldBeforeItsEndIsAwaited) {
  ClientGroupState group(11, 1);
  EXPECT_TRUE(group.MoveOn(1));
  EXPECT_EQ(group.ForLaunch(Milliseconds(0)).status().code(), Code::kUnavailable);
  group.Learn(2);
  EXPECT_FALSE(group.Outdated());
  EXPECT_EQ(group.ForLaunch(Milliseconds(0)).value(), 2u);
}

TEST(GroupStateTest, ARestartIsToldByOneCallThoughTheEnginesAreNotBackYet) {
  ClientGroupState group(11, 1);
  EXPECT_TRUE(group.MoveOn(1));
  EXPECT_FALSE(group.MoveOn(1));
  group.Learn(2);
  EXPECT_FALSE(group.MoveOn(1));
  EXPECT_EQ(group.ForLaunch(Milliseconds(0)).value(), 2u);
  group.Learn(3);
  EXPECT_TRUE(group.MoveOn(2));
}

TEST_F(FailuresTest, ARestartStopsOneLaunchOfARankWhateverPlansItCutOff) {
  auto other = group_->Prepare("other", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  for (bool back_when_reported : {true, false}) {
    const uint64_t generation = back_when_reported ? 2 : 3;
    ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
    ASSERT_TRUE(other->Launch(stream_.get(), {}).ok());
    ChannelConsumer* engine = Engine(generation - 2);
    Arrive(engine);
    engine->words().Release(Aborted("the engine has ended"));
    ASSERT_TRUE(stream_->Synchronize(kLong).ok());
    if (back_when_reported) TellRestart(generation);
    EXPECT_EQ(plan_->Launch(stream_.get(), {}).code(), Code::kAborted);
    if (!back_when_reported) TellRestart(generation);
    // Another rank may have had nothing of this plan in flight: it makes this launch.
    ASSERT_TRUE(other->Launch(stream_.get(), {}).ok());
    LaunchEntry entry = Arrive(Engine(generation - 1));
    EXPECT_EQ(entry.group_generation, generation);
    Finish(Engine(generation - 1), entry, Code::kOk, "", generation);
    EXPECT_EQ(other->Wait(kLong).code(), Code::kAborted) << "the launch before it";
    EXPECT_TRUE(other->Wait(kLong).ok());
    EXPECT_TRUE(plan_->Wait(kLong).ok());
  }
}

TEST_F(FailuresTest, EveryLaunchByGrpcThatARestartCutOffSaysSoAndThePlanGoesOn) {
  daemon_->wait_launch = [](uint64_t, Milliseconds) { return Aborted("engine of GPU 0 has ended"); };
  uint64_t first = plan_->LaunchWithoutStream({}).value();
  uint64_t second = plan_->LaunchWithoutStream({}).value();
  TellRestart(2);
  EXPECT_EQ(plan_->WaitLaunch(first, kLong).code(), Code::kAborted);
  EXPECT_EQ(plan_->WaitLaunch(second, kLong).code(), Code::kAborted);
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  LaunchEntry entry = Arrive(Engine());
  EXPECT_EQ(entry.group_generation, 2u);
  Finish(Engine(), entry, Code::kOk, "", 2);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(FailuresTest, AFullRingHoldsTheLaunchUpAndNotTheNewsOfAnEarlierFailure) {
  auto other = group_->Prepare("other", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  for (uint32_t i = 1; i < kRingEntries; ++i) ASSERT_TRUE(other->Launch(stream_.get(), {}).ok());
  Finish(engine, Arrive(engine), Code::kDeadlineExceeded, "rank 1 has not launched");
  ASSERT_TRUE(other->Launch(stream_.get(), {}).ok()) << "it takes the room";
  LaunchOptions hasty;
  hasty.deadline = Milliseconds(20);
  Status full = plan_->Launch(stream_.get(), {}, hasty);
  EXPECT_EQ(full.detail().reason, "RING_FULL") << full.ToString();
  std::thread engine_thread([&] {
    for (uint32_t i = 0; i < kRingEntries + 1; ++i) Finish(engine, Arrive(engine));
  });
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).message(), "rank 1 has not launched");
  engine_thread.join();  // the launch that reported it was made as well
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  EXPECT_TRUE(other->Wait(kLong).ok());
}

TEST_F(FailuresTest, AFullRingIsWaitedForAsLongAsTheGroupsLaunchesMayTake) {
  JoinOptions join;
  join.job_key = "0123456789abcdef";
  join.world_size = 2;
  join.launch_deadline = Milliseconds(20);
  auto group = client_->JoinGroup(join).value();
  auto plan = group->Prepare("hasty", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  for (uint32_t i = 0; i < kRingEntries; ++i) ASSERT_TRUE(plan->Launch(stream_.get(), {}).ok());
  const auto before = Clock::now();
  Status full = plan->Launch(stream_.get(), {});
  EXPECT_EQ(full.detail().reason, "RING_FULL") << full.ToString();
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(50));
}

TEST_F(FailuresTest, OnlyARestartIsToldInsteadOfALaunch) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Finish(Engine(), Arrive(Engine()), Code::kDeadlineExceeded, "rank 1 has not launched");
  TellRestart(2);
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).code(), Code::kAborted);
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).code(), Code::kDeadlineExceeded);
  LaunchEntry entry = Arrive(Engine());
  EXPECT_EQ(entry.group_generation, 2u);
  Finish(Engine(), entry, Code::kOk, "", 2);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(FailuresTest, ALaunchByGrpcThatItsOwnDeadlineEndedIsToldOnce) {
  std::atomic<bool> ended{false}, taken{false};
  std::atomic<int> waits{0};
  daemon_->wait_launch = [&](uint64_t, Milliseconds) {
    ++waits;
    if (!ended) return DeadlineExceeded("launch 1 has not ended yet");
    return taken.exchange(true) ? NotFound("its outcome was taken already")
                                : DeadlineExceeded("rank 1 had not arrived");
  };
  uint64_t launch = plan_->LaunchWithoutStream({}).value();
  EXPECT_EQ(plan_->WaitLaunch(launch, Milliseconds(1)).message(), "launch 1 has not ended yet");
  EXPECT_EQ(plan_->Wait(Milliseconds(1)).message(), "launch 1 has not ended yet") << "it is still waited for";
  ended = true;
  EXPECT_EQ(plan_->WaitLaunch(launch, kLong).message(), "rank 1 had not arrived");
  waits = 0;
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  EXPECT_EQ(waits, 0) << "the launch is kept";
}

TEST_F(FailuresTest, AWaitForEverIsALongOne) {
  std::vector<Milliseconds> deadlines;
  daemon_->wait_launch = [&](uint64_t, Milliseconds deadline) {
    deadlines.push_back(deadline);
    return Status::Ok();
  };
  const uint64_t first = plan_->LaunchWithoutStream({}, {.deadline = Milliseconds::max(), .tag = {}}).value();
  EXPECT_TRUE(plan_->WaitLaunch(first, Milliseconds::max()).ok());
  ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_TRUE(plan_->Wait(Milliseconds::max()).ok());
  ASSERT_EQ(deadlines.size(), 2u);
  for (Milliseconds deadline : deadlines) {
    EXPECT_GT(deadline, std::chrono::hours(24 * 300));
    EXPECT_GT(Clock::now() + deadline, Clock::now()) << "it overflows";
  }
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}, {.deadline = Milliseconds::max(), .tag = {}}).ok());
  LaunchEntry entry = Arrive(Engine());
  EXPECT_EQ(entry.deadline_ns, uint64_t{365} * 24 * 3600 * 1'000'000'000);
  Finish(Engine(), entry);
  EXPECT_TRUE(stream_->Synchronize(std::chrono::nanoseconds::max()).ok());
}

TEST_F(FailuresTest, AQueryLooksAtLaunchesByGrpcToo) {
  std::atomic<bool> ended{false};
  daemon_->wait_launch = [&](uint64_t launch, Milliseconds) {
    if (!ended) return DeadlineExceeded("the launch has not ended yet");
    return launch % 2 == 0 ? Status::Ok() : Internal("the launch failed");
  };
  ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  ASSERT_TRUE(plan_->LaunchWithoutStream({}).ok());
  EXPECT_FALSE(plan_->Query().value());
  EXPECT_FALSE(plan_->Query().value()) << "it is still waited for";
  ended = true;
  EXPECT_EQ(plan_->Query().status().message(), "the launch failed");
  EXPECT_TRUE(plan_->Query().value());
}

TEST_F(FailuresTest, AnOutcomeThatAnotherCallHasTakenIsNoFailureOfAWait) {
  daemon_->wait_launch = [](uint64_t, Milliseconds) {
    return NotFound("the launch's outcome was taken by another call");
  };
  uint64_t launch = plan_->LaunchWithoutStream({}).value();
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  EXPECT_EQ(plan_->WaitLaunch(launch, kLong).code(), Code::kNotFound);
}

TEST_F(FailuresTest, APlansEndCutsItsLaunchesOffWithoutARestart) {
  auto other = group_->Prepare("other", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  daemon_->wait_launch = [](uint64_t, Milliseconds) {
    return Aborted("launch 1 of plan 100 ended: the plan was released");
  };
  uint64_t launch = plan_->LaunchWithoutStream({}).value();
  ASSERT_TRUE(plan_->Release().ok());
  EXPECT_EQ(plan_->WaitLaunch(launch, kLong).code(), Code::kAborted);
  ASSERT_TRUE(other->Launch(stream_.get(), {}).ok());
  Finish(Engine(), Arrive(Engine()));
  EXPECT_TRUE(other->Wait(kLong).ok());
}

}  // namespace
}  // namespace tandem::client
