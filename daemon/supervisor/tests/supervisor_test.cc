#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "common/shared_memory.h"
#include "daemon/supervisor/tests/supervisor_fixture.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST_F(SupervisorTest, StartsCallsAndStopsInOrder) {
  Start({"a", "b", "c"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  for (int gpu = 0; gpu < 3; ++gpu) {
    EXPECT_TRUE(supervisor_->Call(gpu, Ping(), {}, milliseconds(10000)).ok());
    EXPECT_EQ(supervisor_->StatusOf(gpu).generation, 1u);
    EXPECT_GT(supervisor_->StatusOf(gpu).pid, 0);
    // The fake engine counts a driver of 2.5 ms; the rest is the process.
    EXPECT_GT(supervisor_->StatusOf(gpu).start_seconds, 0);
    const std::string start = supervisor_->StatusOf(gpu).start;
    EXPECT_NE(start.find(" s: process "), std::string::npos) << start;
    EXPECT_NE(start.find(", driver 0.00 s"), std::string::npos) << start;
  }
  auto segment = supervisor_->AllocateSegment(1, 7, 8192);
  ASSERT_TRUE(segment.ok()) << segment.status().ToString();
  EXPECT_EQ(FileSize(segment->get()).value(), 8192u);
  auto queue = QueueOf(2);
  ASSERT_TRUE(queue.ok());
  EXPECT_EQ((*queue)->items(0).plan_id(), 42u);
  supervisor_->Stop();
  EXPECT_TRUE(listener_.Await("down 1 exit 0"));
  EXPECT_EQ(supervisor_->Call(0, Ping(), {}, milliseconds(100)).code(), Code::kUnavailable);
}

TEST_F(SupervisorTest, CapabilitiesAreThoseThatAnEngineAnnouncesElseItsBackends) {
  Start({"announces", "of a build that announces nothing"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  const EngineCapabilities announced{.packet_kernels = true, .on_gpu = true};
  EXPECT_EQ(supervisor_->StatusOf(0).capabilities, announced);
  EXPECT_EQ(supervisor_->StatusOf(1).capabilities, CapabilitiesOfBackend("host"));
  EXPECT_NE(CapabilitiesOfBackend("host"), CapabilitiesOfBackend("cuda"));
}

TEST_F(SupervisorTest, AnEngineGetsItsEnvironmentOverTheDaemons) {
  ::setenv("TANDEM_FAKE_GIVEN", "old", 1);
  ::setenv("TANDEM_FAKE_INHERITED", "yes", 1);
  environment_ = {"TANDEM_FAKE_GIVEN=new"};
  Start({"environment"});
  EXPECT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  EXPECT_EQ(supervisor_->StatusOf(0).generation, 1u);
}

TEST_F(SupervisorTest, CarriesRefusalsAndLaunchResults) {
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  engine::v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(1);
  Status refused = supervisor_->Call(0, remove, {}, milliseconds(10000));
  EXPECT_EQ(refused.code(), Code::kNotFound);
  EXPECT_EQ(refused.message(), "no such plan");
  engine::v1::Command launch;
  launch.mutable_launch()->set_launch_id(77);
  EXPECT_TRUE(supervisor_->Call(0, launch, {}, milliseconds(10000)).ok());
  EXPECT_TRUE(listener_.Await("done 77"));
}

TEST_F(SupervisorTest, CallWithoutAnswerMeetsItsDeadline) {
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  engine::v1::Command command;
  command.mutable_remove_group();
  EXPECT_EQ(supervisor_->Call(0, command, {}, milliseconds(50)).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(supervisor_->Call(0, Ping(), {}, milliseconds(10000)).ok());
}

TEST_F(SupervisorTest, KilledEngineIsStartedAgainUnderTheNextGeneration) {
  Start({"a", "b"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  int neighbour = supervisor_->StatusOf(1).pid;
  ::kill(supervisor_->StatusOf(0).pid, SIGKILL);
  EXPECT_TRUE(listener_.Await("down 1 signal 9"));
  EXPECT_TRUE(listener_.Await("up 2"));
  EXPECT_TRUE(supervisor_->Call(0, Ping(), {}, milliseconds(10000)).ok());
  EXPECT_EQ(supervisor_->StatusOf(0).restarts, 1u);
  EXPECT_EQ(supervisor_->StatusOf(1).pid, neighbour);
}

TEST_F(SupervisorTest, EndDuringACallAnswersItAtOnce) {
  Start({"a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  engine::v1::Command command;
  command.mutable_break_group();
  EXPECT_EQ(supervisor_->Call(0, command, {}, milliseconds(30000)).code(), Code::kUnavailable);
  EXPECT_TRUE(listener_.Await("exit 9"));
}

TEST_F(SupervisorTest, OneCrashAtStartIsSurvived) {
  Start({"crash_first_time"});
  EXPECT_TRUE(listener_.Await("up 2"));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("exit 3"));
}

TEST_F(SupervisorTest, ACrashLoopIsHeldDownAndAResetTriesAgain) {
  settings_.restart.crash_loop_count = 3;
  Start({"crash_at_start"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_EQ(supervisor_->StatusOf(0).generation, 3u);
  Status call = supervisor_->Call(0, Ping(), {}, milliseconds(100));
  EXPECT_EQ(call.code(), Code::kUnavailable);
  EXPECT_THAT(call.message(), HasSubstr("crash loop"));
  EXPECT_FALSE(supervisor_->AwaitReady(milliseconds(100)).ok());
  EXPECT_TRUE(supervisor_->Reset(0).ok());
  EXPECT_EQ(supervisor_->Reset(7).code(), Code::kNotFound);
  EXPECT_TRUE(Eventually([&] { return supervisor_->StatusOf(0).generation >= 6; }));
  EXPECT_EQ(supervisor_->StatusOf(0).generation, 6u);
}

TEST_F(SupervisorTest, AnEngineThatOthersKeepFromStartingIsNoCrashLoop) {
  settings_.restart.crash_loop_count = 2;
  settings_.restart.blocked_initial = settings_.restart.blocked_max = milliseconds(1);
  Start({"blocked_at_first"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  EngineStatus status = supervisor_->StatusOf(0);
  EXPECT_EQ(status.generation, 5u);
  EXPECT_EQ(status.restarts, 0u);
  EXPECT_EQ(status.blocked, "");
}

TEST_F(SupervisorTest, ABlockedEngineSaysWhyAndHoldsNobodyUp) {
  settings_.restart.blocked_initial = milliseconds(1);
  Start({"blocked", "a"});
  Status ready = supervisor_->AwaitReady(milliseconds(60000));
  EXPECT_EQ(ready.code(), Code::kUnavailable) << "and not the deadline";
  EXPECT_THAT(ready.message(), HasSubstr("MPS server is not ready"));
  EXPECT_EQ(supervisor_->StatusOf(0).last_exit, "");
  EXPECT_THAT(supervisor_->StatusOf(0).blocked, HasSubstr("MPS server is not ready"));
  Status call = supervisor_->Call(0, Ping(), {}, milliseconds(100));
  EXPECT_EQ(call.detail().reason, "ENGINE_BLOCKED");
  EXPECT_TRUE(supervisor_->Call(1, Ping(), {}, milliseconds(10000)).ok());
}

TEST_F(SupervisorTest, ASpareMpsServerServesWhileTheUsualOneDoesNot) {
  MpsDirectory mps;
  settings_.mps_directories = {mps.path, mps.path + "/spare"};
  settings_.restart.blocked_initial = milliseconds(60000);  // the spare one is tried at once
  Start({"needs_spare", "a"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  EXPECT_EQ(supervisor_->StatusOf(0).generation, 2u);
  EXPECT_EQ(supervisor_->StatusOf(0).mps.directory, mps.path + "/spare");
  EXPECT_FALSE(supervisor_->StatusOf(0).mps.answers);
  EXPECT_EQ(supervisor_->StatusOf(1).mps.directory, mps.path);
  EXPECT_TRUE(supervisor_->StatusOf(1).mps.answers);
}

TEST_F(SupervisorTest, ALostContextIsNoCrashAndIsNamed) {
  MpsDirectory mps;
  settings_.mps_directories = {mps.path};
  settings_.restart.crash_loop_count = 2;
  settings_.restart.blocked_initial = settings_.restart.blocked_max = milliseconds(1);
  Start({"context_lost"});
  for (uint64_t generation = 1; generation <= 4; ++generation) {
    ASSERT_TRUE(listener_.Await("up " + std::to_string(generation)));
    ASSERT_TRUE(AwaitState(EngineState::kReady));
    engine::v1::Command command;
    command.mutable_break_group();
    EXPECT_EQ(supervisor_->Call(0, command, {}, milliseconds(30000)).code(), Code::kUnavailable);
    ASSERT_TRUE(listener_.Await("down " + std::to_string(generation) +
                                " cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700); exit 3"));
  }
  EXPECT_TRUE(listener_.context_lost());
}

TEST_F(SupervisorTest, ALostContextWithoutMpsIsTheEnginesOwnCrash) {
  settings_.mps_directories = {"/nonexistent"};
  settings_.restart.crash_loop_count = 1;
  Start({"context_lost"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  engine::v1::Command command;
  command.mutable_break_group();
  EXPECT_EQ(supervisor_->Call(0, command, {}, milliseconds(30000)).code(), Code::kUnavailable);
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_FALSE(supervisor_->StatusOf(0).context_lost);
}

TEST_F(SupervisorTest, EngineThatIsNeverReadyIsEnded) {
  settings_.start_deadline = milliseconds(50);
  settings_.restart.crash_loop_count = 2;
  Start({"never_ready"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("not ready after 50 ms"));
}

TEST_F(SupervisorTest, GarbageAndRefusalAreReported) {
  settings_.restart.crash_loop_count = 1;
  Start({"garbage"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("malformed"));
  supervisor_->Stop();
  Start({"refuse"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("no room for memory"));
  supervisor_->Stop();
  Start({"abort_at_start"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("signal 6"));
}

TEST_F(SupervisorTest, SilentEngineIsReplaced) {
  settings_.ping_interval = milliseconds(10);
  settings_.silence_limit = milliseconds(100);
  settings_.restart.crash_loop_count = 1;
  Start({"silent"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("answered nothing"));
}

TEST_F(SupervisorTest, AnEngineThatDoesNotAnswerIsNamed) {
  settings_.ping_interval = milliseconds(10);
  Start({"a", "silent"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  EXPECT_TRUE(QueueOf(0).ok());
  const Status silent = supervisor_->QueueSnapshot(1).status();
  EXPECT_EQ(silent.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(silent.message(), HasSubstr("the engine of GPU 1 ("));
  EXPECT_GT(supervisor_->StatusOf(1).silent_seconds, 0.9);
  EXPECT_TRUE(Eventually(
      [&] { return supervisor_->StatusOf(0).silent_seconds < supervisor_->StatusOf(1).silent_seconds; }));
}

TEST_F(SupervisorTest, AnEngineThatMustAnswerAndDoesNotIsReplaced) {
  OnlyDemandsEndAnEngine();
  Start({"silent"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  supervisor_->DemandAnswer(0, milliseconds(50));
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("answered nothing for 50 ms"));
}

TEST_F(SupervisorTest, ADemandAsSoonAsAnEngineIsUpIsNotLost) {
  OnlyDemandsEndAnEngine();
  listener_.demand_when_up = milliseconds(50);
  Start({"silent"});
  ASSERT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_THAT(supervisor_->StatusOf(0).last_exit, HasSubstr("answered nothing for 50 ms"));
}

TEST_F(SupervisorTest, AnEngineThatAnswersWhenItMustGoesOn) {
  settings_.ping_interval = milliseconds(60000);
  Start({"normal"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  const int pid = supervisor_->StatusOf(0).pid;
  supervisor_->DemandAnswer(0, milliseconds(20000));
  supervisor_->DemandAnswer(7, milliseconds(1));
  // The answer to the demand's ping is older than that to this command, which the same process gives.
  engine::v1::Command launch;
  launch.mutable_launch();
  EXPECT_TRUE(supervisor_->Call(0, launch, {}, milliseconds(10000)).ok());
  EXPECT_EQ(supervisor_->StatusOf(0).pid, pid);
}

TEST_F(SupervisorTest, KillIsTheLastResort) {
  settings_.end_grace = milliseconds(50);
  Start({"ignore_end_of_file"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  supervisor_->Stop();
  EXPECT_TRUE(listener_.Await("signal 9"));
}

// While the engine takes its time to end, nobody waits for its answers.
TEST_F(SupervisorTest, AStopEndsCallsBeforeTheEngineEnds) {
  settings_.end_grace = milliseconds(60000);
  Start({"ignore_end_of_file"});
  ASSERT_TRUE(supervisor_->AwaitReady(milliseconds(30000)).ok());
  const int pid = supervisor_->StatusOf(0).pid;
  auto call = std::async(std::launch::async, [&] {
    engine::v1::Command unanswered;
    unanswered.mutable_remove_group()->set_group_id(5);
    return supervisor_->Call(0, unanswered, {}, milliseconds(60000));
  });
  ASSERT_TRUE(listener_.Await("done 5"));
  supervisor_->RequestStop();
  ASSERT_EQ(call.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const Status reported = call.get();
  EXPECT_EQ(reported.code(), Code::kUnavailable);
  EXPECT_THAT(reported.message(), HasSubstr("the daemon is stopping"));
  EXPECT_THAT(supervisor_->Call(0, Ping(), {}, milliseconds(60000)).message(),
              HasSubstr("the daemon is stopping"));
  EXPECT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_TRUE(listener_.Await("signal 9"));
}

TEST_F(SupervisorTest, AProcessThatSigkillDoesNotEndCostsItsOwnGpuOnly) {
  char name[] = "/tmp/tandem-held-test.XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string folder = name, fifo = folder + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  environment_ = {"TANDEM_FAKE_HELD_BY=" + fifo};
  settings_.end_grace = milliseconds(50);
  OnlyDemandsEndAnEngine();
  Start({"held_at_the_end"});
  const Status ready = supervisor_->AwaitReady(milliseconds(30000));
  if (supervisor_->StatusOf(0).last_exit.find("exit 70") != std::string::npos) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << "no process may be traced here";
  }
  ASSERT_TRUE(ready.ok()) << ready.ToString();
  const std::string process = "process " + std::to_string(supervisor_->StatusOf(0).pid) + " has not ended";
  supervisor_->DemandAnswer(0, milliseconds(50));
  EXPECT_TRUE(Eventually([&] { return !supervisor_->StatusOf(0).lingers.empty(); }));
  EXPECT_THAT(supervisor_->StatusOf(0).lingers, HasSubstr(process));
  EXPECT_EQ(supervisor_->StatusOf(0).state, EngineState::kDown);
  EXPECT_THAT(supervisor_->Call(0, Ping(), {}, milliseconds(100)).message(), HasSubstr(process));
  // The keeper goes on, and shows it: the time since it last did gets shorter again.
  milliseconds longest{0};
  EXPECT_TRUE(Eventually([&] {
    const milliseconds turn = supervisor_->LongestTurn();
    longest = std::max(longest, turn);
    return turn < longest;
  }));
  const int let_go = ::open(fifo.c_str(), O_WRONLY | O_CLOEXEC);
  EXPECT_GE(let_go, 0);
  ::close(let_go);
  EXPECT_TRUE(listener_.Await("signal 9"));
  EXPECT_TRUE(AwaitState(EngineState::kCrashLooped));
  EXPECT_EQ(supervisor_->StatusOf(0).lingers, "");
  std::filesystem::remove_all(folder);
}

TEST_F(SupervisorTest, MissingProgramIsRefused) {
  settings_.program = "/nonexistent/tandem-engine";
  auto made = Supervisor::Create(settings_, UniqueFd(), {});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().message(), HasSubstr("/nonexistent/tandem-engine"));
}

}  // namespace
}  // namespace tandem::daemon
