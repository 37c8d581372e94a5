// Channels that the engine releases since their client broke the protocol.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/tests/engine_node.h"

namespace tandem::engine {
namespace {

TEST(ReleasedChannelTest, GarbageOnTheRingEndsThatChannelOnly) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0});
  uint64_t plan = node.AddEmptyPlan(&group);
  auto good = node.OpenChannel(0);
  for (uint64_t pattern : {~uint64_t{0}, uint64_t{1}, uint64_t{0x0102030405060708}}) {
    auto bad = node.OpenChannel(0);
    Result<Mapping> ring = Mapping::Map(bad->memory.ring.get(), 0, RingBytes(64), true);
    ASSERT_TRUE(ring.ok());
    for (size_t i = 0; i < RingBytes(64) / 8; ++i) ring->As<std::atomic<uint64_t>>()[i].store(pattern);
    Result<Mapping> words = Mapping::Map(bad->memory.words.get(), 0, kStatusRecordsOffset, true);
    ASSERT_TRUE(words.ok());
    words->As<ChannelWordsHeader>()->request.store(pattern);
    ASSERT_TRUE(node.Call(0,
                          [] {
                            v1::Command c;
                            c.mutable_ping();
                            return c;
                          }())
                    .ok());
    EXPECT_TRUE(good->LaunchAndWait(Entry(plan)).status.ok());
    auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!bad->producer.words().Released() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    EXPECT_EQ(bad->producer.words().ClosedStatus().code(), Code::kInvalidArgument);
    EXPECT_EQ(bad->producer.Done(), kReleaseValue);
  }
}

// Makes the engine release `channel`: its ring claims more entries than it has.
void BreakForm(const TestChannel& channel) {
  Result<Mapping> ring = Mapping::Map(channel.memory.ring.get(), 0, RingBytes(64), true);
  ASSERT_TRUE(ring.ok());
  ring->As<RingHeader>()->producer.store(1000);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (channel.producer.Done() != kReleaseValue && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  ASSERT_EQ(channel.producer.Done(), kReleaseValue);
}

// Its stream may wait for launches that nobody takes any more: what the engine has under way must not end the
// release.
TEST(ReleasedChannelTest, AReleasedChannelStaysSoWhenItsLaunchEnds) {
  EngineNode node(2);
  TestGroup alone = node.AddGroup(100, {0}), both = node.AddGroup(101, {0, 1});
  plan::RankProgram gate;
  gate.signal_count = 1;
  plan::Step wait;
  wait.work = plan::WaitStep{0, 0};
  gate.steps.push_back(wait);
  const uint64_t gated = node.AddPlan(&alone, {gate}, {}), undecided = node.AddBarrierPlan(&both);
  auto channel = node.OpenChannel(0);
  ASSERT_EQ(channel->Launch(Entry(gated)), 1u);
  ASSERT_TRUE(
      node.AwaitQueue(0, [](const v1::Queue& q) { return q.items_size() == 1 && q.items(0).started(); }));
  ASSERT_NO_FATAL_FAILURE(BreakForm(*channel));
  node.SignalWord(alone, 0, 0, 0)->store(1);  // a lane writes its done value
  // Released again behind the lane's write: then the launch has ended by itself.
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!channel->producer.Outcome(1).status.ok() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_TRUE(channel->producer.Outcome(1).status.ok()) << channel->producer.Outcome(1).status.ToString();
  while (channel->producer.Done() != kReleaseValue && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(channel->producer.Done(), kReleaseValue);
  EXPECT_EQ(channel->producer.words().ClosedStatus().code(), Code::kInvalidArgument);

  channel = node.OpenChannel(0);
  ASSERT_EQ(channel->Launch(Entry(undecided)), 1u);
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  ASSERT_NO_FATAL_FAILURE(BreakForm(*channel));
  v1::Command remove;
  remove.mutable_remove_plan()->set_plan_id(undecided);
  ASSERT_TRUE(node.Call(0, remove).ok());  // the engine's thread writes it
  EXPECT_EQ(channel->producer.Done(), kReleaseValue);
}

}  // namespace
}  // namespace tandem::engine
