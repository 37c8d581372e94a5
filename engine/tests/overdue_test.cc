// Programs that have started and do not end: their group breaks by the deadline, with a reason that names the
// peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/tests/engine_node.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Rank 0 waits for a signal from rank 1 that rank 1's program does not send.
uint64_t AddHangingPlan(EngineNode* node, TestGroup* group) {
  std::vector<plan::RankProgram> programs(2);
  programs[1].rank = 1;
  for (plan::RankProgram& program : programs) {
    program.world_size = 2;
    program.signal_count = 2;
  }
  plan::Step wait;
  wait.work = plan::WaitStep{1, 1};
  programs[0].steps.push_back(wait);
  plan::Step signal;
  signal.work = plan::SignalStep{0, 0};
  programs[1].steps.push_back(signal);
  return node->AddPlan(group, programs, {});
}

TEST(OverdueTest, AProgramThatCannotEndBreaksItsGroupAndNamesThePeer) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1}, 300);
  TestGroup bystander = node.AddGroup(101, {0, 1});
  uint64_t hanging = AddHangingPlan(&node, &group);
  uint64_t other = node.AddBarrierPlan(&bystander);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  const auto begin = Clock::now();
  channel0->Launch(Entry(hanging));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(hanging)).status.ok());
  ASSERT_TRUE(channel0->Wait(1));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
  const LaunchOutcome outcome = channel0->producer.Outcome(1);
  EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded) << outcome.status.ToString();
  EXPECT_EQ(outcome.who_rank, 1);
  EXPECT_THAT(outcome.status.message(), HasSubstr("launch 1 of plan " + std::to_string(hanging)));
  EXPECT_THAT(outcome.status.message(), HasSubstr("wait for signals of rank 1"));
  // tandemd hears it with the reason, and breaks the group on the other engines.
  v1::Message message;
  ASSERT_TRUE(node.Await(
      0, [](const v1::Message& m) { return m.has_launch_failed() && m.launch_failed().breaks_group(); },
      &message));
  EXPECT_EQ(message.launch_failed().group_id(), group.id);
  EXPECT_EQ(message.launch_failed().generation(), group.generation);
  EXPECT_EQ(message.launch_failed().code(), static_cast<int>(Code::kDeadlineExceeded));
  EXPECT_EQ(message.launch_failed().who(), "rank 1");
  // Even without tandemd the log tells them.
  EXPECT_EQ(channel1->LaunchAndWait(Entry(hanging)).status.code(), Code::kUnavailable);
  EXPECT_EQ(channel0->LaunchAndWait(Entry(hanging)).status.code(), Code::kDeadlineExceeded);
  channel0->Launch(Entry(other));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(other)).status.ok());
  ASSERT_TRUE(channel0->Wait(3));
  EXPECT_TRUE(channel0->producer.Outcome(3).status.ok());
}

TEST(OverdueTest, ALaunchMayRunAsLongAsItsOwnDeadlineAndWaitForLanesLonger) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0}, 400);
  std::vector<uint64_t> gates;
  for (uint16_t index : {0, 1}) {
    plan::RankProgram program;
    program.world_size = 1;
    program.signal_count = 2;
    plan::Step wait;
    wait.work = plan::WaitStep{0, index};
    program.steps.push_back(wait);
    gates.push_back(node.AddPlan(&group, {program}, {}));
  }
  auto first = node.OpenChannel(0);
  auto second = node.OpenChannel(0);
  LaunchEntry patient = Entry(gates[0]);
  patient.deadline_ns = 60'000'000'000;
  first->Launch(patient);
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  second->Launch(Entry(gates[1]));
  ASSERT_TRUE(node.AwaitQueued(0, 2));
  // Past the group's deadline, that of the second launch too; but that one has not had the lanes yet.
  for (const auto until = Clock::now() + std::chrono::seconds(1); Clock::now() < until;
       std::this_thread::yield()) {
    ASSERT_EQ(first->producer.Done(), 0u);
    ASSERT_EQ(second->producer.Done(), 0u);
  }
  node.SignalWord(group, 0, 0, 0)->store(1000);
  ASSERT_TRUE(first->Wait(1));
  node.SignalWord(group, 0, 0, 1)->store(1000);
  ASSERT_TRUE(second->Wait(1));
  EXPECT_TRUE(first->producer.Outcome(1).status.ok()) << first->producer.Outcome(1).status.ToString();
  EXPECT_TRUE(second->producer.Outcome(1).status.ok()) << second->producer.Outcome(1).status.ToString();
}

TEST(OverdueTest, NoDeadlineThatAClientAsksForHoldsTheLanesForGood) {
  constexpr uint64_t kSecond = 1'000'000'000, kHour = 3600 * kSecond;
  EXPECT_EQ(RunLimitNs(0, 10 * kSecond), 10 * kSecond);
  EXPECT_EQ(RunLimitNs(5 * kSecond, 10 * kSecond), 10 * kSecond);
  EXPECT_EQ(RunLimitNs(60 * kSecond, 10 * kSecond), 60 * kSecond);
  EXPECT_EQ(RunLimitNs(~uint64_t{0}, 10 * kSecond), kHour);
  EXPECT_EQ(RunLimitNs(2 * kHour, 3 * kHour), 3 * kHour);  // the group's counts as it is
}

}  // namespace
}  // namespace tandem::engine
