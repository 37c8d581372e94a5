// The order in which complete launches enter the order log while their GPU is full: latency class, then least
// GPU time used by the group, then age.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/tests/engine_node.h"

namespace tandem::engine {
namespace {

constexpr uint32_t kLogPlanMask = (1u << 24) - 1;

// A plan of a one-rank group whose lane waits until the test stores to the rank's own signal word `index`.
uint64_t AddGate(EngineNode* node, TestGroup* group, int index) {
  plan::RankProgram program;
  program.world_size = 1;
  program.signal_count = index + 1;
  plan::Step wait;
  wait.work = plan::WaitStep{0, static_cast<uint16_t>(index)};
  program.steps.push_back(wait);
  return node->AddPlan(group, {program}, {});
}

// The plans of the log's START entries from `position` on.
std::vector<uint64_t> StartsFrom(const OrderLog& log, uint64_t position) {
  std::vector<uint64_t> plans;
  for (LogEntry entry; log.Read(position, &entry) == LogRead::kEntry; ++position) {
    if (entry.kind == LogKind::kStart) plans.push_back(entry.plan);
  }
  return plans;
}

TEST(AdmissionTest, LatencyClassThenLeastGpuTimeThenAge) {
  EngineNode node(1);
  TestGroup busy = node.AddGroup(100, {0});
  TestGroup idle = node.AddGroup(101, {0});
  // Two programs in flight are as many as a GPU takes: what arrives now waits outside the log.
  std::vector<uint64_t> gates = {AddGate(&node, &busy, 0), AddGate(&node, &busy, 1)};
  uint64_t of_busy = node.AddEmptyPlan(&busy);
  uint64_t withdrawn = node.AddEmptyPlan(&idle);
  uint64_t older = node.AddEmptyPlan(&idle);
  uint64_t younger = node.AddEmptyPlan(&idle);
  uint64_t urgent = node.AddEmptyPlan(&busy, true);
  std::vector<std::unique_ptr<TestChannel>> channels;
  // A channel each, so that all can arrive; seen in the queue before the next one, so that ages differ as
  // listed.
  auto arrive = [&](uint64_t plan, int expected_in_queue) {
    channels.push_back(node.OpenChannel(0));
    ASSERT_EQ(channels.back()->Launch(Entry(plan)), 1u);
    ASSERT_TRUE(node.AwaitQueued(0, expected_in_queue));
  };
  int queued = 0;
  for (uint64_t gate : gates) ASSERT_NO_FATAL_FAILURE(arrive(gate, ++queued));
  const uint64_t before = node.log().Head();
  for (uint64_t plan : {of_busy, withdrawn, older, younger}) ASSERT_NO_FATAL_FAILURE(arrive(plan, ++queued));
  // Its end moves the youngest launch to its place in the engine's list: age must not be read from there.
  v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(withdrawn);
  ASSERT_TRUE(node.Call(0, remove).ok());
  ASSERT_TRUE(node.AwaitQueued(0, --queued));
  ASSERT_NO_FATAL_FAILURE(arrive(urgent, ++queued));
  ASSERT_TRUE(StartsFrom(node.log(), before).empty()) << "a third program entered a full GPU";

  for (int gate : {0, 1}) node.SignalWord(busy, 0, 0, gate)->store(1000);
  for (size_t i = 0; i < channels.size(); ++i) {
    ASSERT_TRUE(channels[i]->Wait(1)) << i;
    EXPECT_EQ(channels[i]->producer.Outcome(1).status.ok(), i != 3) << i;  // the withdrawn one
  }
  const std::vector<uint64_t> expected = {urgent & kLogPlanMask, older & kLogPlanMask, younger & kLogPlanMask,
                                          of_busy & kLogPlanMask};
  EXPECT_EQ(StartsFrom(node.log(), before), expected);
}

// The log names launches by 16 bits: what waits to be decided must stay within their reach, however many
// overlap it.
TEST(AdmissionTest, ALaunchIsDecidedHoweverManyOverlapIt) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0}, 3'600'000);
  const std::vector<uint64_t> gates = {AddGate(&node, &group, 0), AddGate(&node, &group, 1)};
  const uint64_t plan = node.AddEmptyPlan(&group);
  std::vector<std::unique_ptr<TestChannel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(node.OpenChannel(0));
  // The GPU is full, so that the plan's launch waits outside the log.
  ASSERT_EQ(channels[0]->Launch(Entry(gates[0])), 1u);
  ASSERT_EQ(channels[1]->Launch(Entry(gates[1])), 1u);
  ASSERT_TRUE(node.AwaitQueued(0, 2));
  ASSERT_EQ(channels[2]->Launch(Entry(plan)), 1u);
  ASSERT_TRUE(node.AwaitQueued(0, 3));
  constexpr int kLaunches = 33000;
  int counted = 0;
  for (int i = 0; i < kLaunches; ++i) {
    const Code code = channels[3]->LaunchAndWait(Entry(plan)).status.code();
    counted += code == Code::kFailedPrecondition;
    ASSERT_TRUE(code == Code::kFailedPrecondition || code == Code::kResourceExhausted) << i;
  }
  EXPECT_EQ(counted, 16384);

  for (int gate : {0, 1}) node.SignalWord(group, 0, 0, gate)->store(1000);
  for (int i : {0, 1, 2}) {
    ASSERT_TRUE(channels[static_cast<size_t>(i)]->Wait(1)) << i;
    EXPECT_TRUE(channels[static_cast<size_t>(i)]->producer.Outcome(1).status.ok()) << i;
  }
  EXPECT_TRUE(channels[3]->LaunchAndWait(Entry(plan)).status.ok());
  // An entry for each launch that has started or was counted, and no more.
  EXPECT_EQ(node.log().Head(), static_cast<uint64_t>(counted) + 4);
}

}  // namespace
}  // namespace tandem::engine
