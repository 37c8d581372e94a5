// Engines that the order log laps: they end, and say so.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "daemon/engine/tests/engine_node.h"
#include "daemon/engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

// So many entries, of a plan that nobody has, that who has not read the first of them never will.
void Lap(OrderLog* log) {
  for (uint64_t position = log->Head(), end = position + kLogSlots + 2; position < end; ++position) {
    ASSERT_TRUE(log->TryAppend(position, {.kind = LogKind::kStart, .mask = 0, .plan = kLogIdMask, .count = 0}));
  }
}

v1::Command Hold() {
  v1::Command command;
  command.mutable_make_unique_id();
  return command;
}

// Its launch differs from the peer's, which is to be said in the log: and nothing can be said there any more.
TEST(LappedTest, AnEngineWithALaunchToDecideEnds) {
  EngineGate gate;
  EngineNode node(1, 8, [&gate](std::unique_ptr<Backend> backend) { return std::make_unique<HeldBackend>(std::move(backend), &gate); });
  node.Impersonate(1);
  TestGroup group = node.AddGroup(100, {0, 0});
  const uint64_t plan = node.AddEmptyPlan(&group);
  auto channel = node.OpenChannel(0);
  ASSERT_EQ(channel->Launch(Entry(plan)), 1u);
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  node.ExpectFailure(0);
  ASSERT_TRUE(node.Send(0, Hold()).ok());
  gate.AwaitReached();
  ArrivalTable& table = node.Arrivals(group);
  table.Arrive(0, 1, table.Digest(0, 0) + 1, 1);
  Lap(&node.log());
  gate.open = true;
  v1::Message ended;
  ASSERT_TRUE(node.Await(0, [](const v1::Message& m) { return m.has_ended(); }, &ended));
  EXPECT_EQ(ended.ended().code(), static_cast<int>(Code::kDataLoss)) << ended.ended().message();
}

}  // namespace
}  // namespace tandem::engine
