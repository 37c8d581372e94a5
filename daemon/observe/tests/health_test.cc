#include "daemon/observe/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::daemon {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HealthInput HealthyInput() {
  HealthInput input;
  input.topology = EmulatedTopology(2, 1 << 20);
  input.engines.resize(2);
  for (auto& engine : input.engines) engine.state = EngineState::kReady;
  return input;
}

TEST(HealthTest, AHealthyNodeIsLiveAndReady) {
  const Health health = CheckHealth(HealthyInput());
  EXPECT_TRUE(health.live);
  EXPECT_TRUE(health.ready);
  EXPECT_THAT(health.reasons, IsEmpty());
}

TEST(HealthTest, EachCauseIsNamedAndLeavesTheDaemonLive) {
  const auto reason_of = [](auto change) {
    HealthInput input = HealthyInput();
    change(input);
    const Health health = CheckHealth(input);
    EXPECT_TRUE(health.live);
    EXPECT_FALSE(health.ready);
    return health.reasons.size() == 1 ? health.reasons[0]
                                      : std::to_string(health.reasons.size()) + " reasons";
  };
  EXPECT_THAT(reason_of([](HealthInput& in) { in.admission = Admission::kDraining; }), HasSubstr("drains"));
  EXPECT_THAT(reason_of([](HealthInput& in) { in.admission = Admission::kCordoned; }), HasSubstr("cordoned"));
  EXPECT_THAT(reason_of([](HealthInput& in) { in.engines[1].state = EngineState::kCrashLooped; }),
              HasSubstr("engine of GPU 1 (EMU-0000-0001) is held down"));
  EXPECT_THAT(reason_of([](HealthInput& in) { in.engines[0].state = EngineState::kDown; }),
              HasSubstr("GPU 0"));
  EXPECT_THAT(reason_of([](HealthInput& in) { in.engines[0].state = EngineState::kStarting; }),
              HasSubstr("starting"));
  EXPECT_THAT(reason_of([](HealthInput& in) { in.engines[1].silent_seconds = kSilentEngineSeconds + 1; }),
              HasSubstr("engine of GPU 1 (EMU-0000-0001) has answered nothing for 7 s"));
}

TEST(HealthTest, AFaultIsNamedAndLeavesTheNodeReady) {
  HealthInput input = HealthyInput();
  input.gpus.resize(2);
  GpuReading reading;
  reading.xids = {79};
  Update(reading, &input.gpus[1]);
  const Health health = CheckHealth(input);
  EXPECT_TRUE(health.ready);
  EXPECT_THAT(health.reasons,
              ElementsAre("GPU 1 (EMU-0000-0001) had XID 79 (the GPU has fallen off the bus)"));
}

TEST(HealthTest, ACordonedGpuTakesNoJobs) {
  HealthInput input = HealthyInput();
  input.cordoned_gpus[1] = "XID 79";
  Health health = CheckHealth(input);
  EXPECT_FALSE(health.ready);
  EXPECT_THAT(health.reasons, ElementsAre(HasSubstr("GPU 1 (EMU-0000-0001) is cordoned")));
  input.engines_needed = 1;
  EXPECT_TRUE(CheckHealth(input).ready);
  // It counts once, however many reasons there are.
  input.engines[1].state = EngineState::kDown;
  health = CheckHealth(input);
  EXPECT_TRUE(health.ready);
  EXPECT_EQ(health.reasons.size(), 2u);
}

TEST(HealthTest, ANodeMayBeReadyOnAPartOfItsGpus) {
  HealthInput input = HealthyInput();
  input.topology = EmulatedTopology(3, 1 << 20);
  input.engines.resize(3);
  for (auto& engine : input.engines) engine.state = EngineState::kReady;
  const auto ready = [&](int64_t needed) {
    input.engines_needed = needed;
    return CheckHealth(input).ready;
  };
  EXPECT_TRUE(ready(0));
  input.engines[1].state = EngineState::kCrashLooped;
  EXPECT_FALSE(ready(0));
  EXPECT_FALSE(ready(3));
  EXPECT_FALSE(ready(8));  // all that there are
  EXPECT_TRUE(ready(2));
  EXPECT_TRUE(ready(1));
  EXPECT_THAT(CheckHealth(input).reasons, ElementsAre(HasSubstr("GPU 1 (EMU-0000-0001) is held down")));
  input.engines[0].state = EngineState::kDown;
  EXPECT_FALSE(ready(2));
  EXPECT_TRUE(ready(1));
  input.engines[2].state = EngineState::kStarting;
  EXPECT_FALSE(ready(1));
  input = HealthyInput();
  input.engines_needed = 1;
  input.admission = Admission::kCordoned;
  EXPECT_FALSE(CheckHealth(input).ready);
  input.admission = Admission::kOpen;
  input.live = false;
  EXPECT_FALSE(CheckHealth(input).ready);
}

TEST(HealthTest, ADaemonWithoutProgressIsNeitherLiveNorReady) {
  HealthInput input = HealthyInput();
  input.live = false;
  const Health health = CheckHealth(input);
  EXPECT_FALSE(health.live);
  EXPECT_FALSE(health.ready);
  EXPECT_THAT(health.reasons, ElementsAre(HasSubstr("tandemd")));
}

TEST(HealthTest, AStoppedProcessIsSeen) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  EXPECT_EQ(StoppedProcess(child), "");
  ::kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_THAT(StoppedProcess(child), HasSubstr("process " + std::to_string(child) + " is stopped"));
  HealthInput input = HealthyInput();
  input.engines[1].pid = child;
  EXPECT_THAT(CheckHealth(input).reasons,
              ElementsAre(HasSubstr("engine of GPU 1 (EMU-0000-0001) does not run")));
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_EQ(StoppedProcess(child), "") << "there is no such process";
  EXPECT_EQ(StoppedProcess(0), "");
}

}  // namespace
}  // namespace tandem::daemon
