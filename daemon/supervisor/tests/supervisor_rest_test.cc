// Engines that nobody uses: they end, and come back when they are woken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "daemon/supervisor/tests/supervisor_fixture.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

TEST_F(SupervisorTest, AnEngineRestsUntilItIsWoken) {
  settings_.ping_interval = milliseconds(5);
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    const int pid = supervisor_->StatusOf(0).pid;
    listener_.lets_rest = true;
    ASSERT_TRUE(AwaitState(EngineState::kIdle));
    ASSERT_TRUE(Eventually([&] { return supervisor_->StatusOf(0).pid == 0; }));
    EXPECT_EQ(::kill(pid, 0), -1) << "its process is there";
    EXPECT_TRUE(listener_.Noted("rests " + std::to_string(generation)));
    const Status idle = supervisor_->Call(0, Ping(), {}, milliseconds(100));
    EXPECT_EQ(idle.code(), Code::kUnavailable);
    EXPECT_THAT(idle.message(), HasSubstr("is idle"));
    supervisor_->Wake(0);
    ASSERT_TRUE(AwaitState(EngineState::kReady));
    EXPECT_TRUE(listener_.Await("up " + std::to_string(generation + 1)));
    EXPECT_TRUE(supervisor_->Call(0, Ping(), {}, milliseconds(10000)).ok());
  }
  EXPECT_FALSE(listener_.Noted("down")) << "the listener knew that it went";
  EXPECT_EQ(supervisor_->StatusOf(0).restarts, 0u);
}

// It comes while the process of the engine that was let go still ends.
TEST_F(SupervisorTest, AWakeRightAfterTheListenersWordIsNotLost) {
  settings_.ping_interval = milliseconds(5);
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  for (uint64_t generation = 1; generation <= 5; ++generation) {
    listener_.lets_rest = true;
    ASSERT_TRUE(Eventually([&] { return !listener_.lets_rest; }));
    supervisor_->Wake(0);
    ASSERT_TRUE(listener_.Await("up " + std::to_string(generation + 1)));
  }
}

TEST_F(SupervisorTest, AnIdleEngineLeavesNothingToStop) {
  settings_.ping_interval = milliseconds(5);
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  listener_.lets_rest = true;
  ASSERT_TRUE(AwaitState(EngineState::kIdle));
  supervisor_->Stop();
  EXPECT_FALSE(listener_.Noted("down"));
}

}  // namespace
}  // namespace tandem::daemon
