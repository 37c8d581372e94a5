// Engines that the order log laps: they end, and say so.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "common/fd_socket.h"
#include "engine/tests/engine_node.h"
#include "engine/tests/wrapped_backend.h"
#include "kernels/host/host_backend.h"

namespace tandem::engine {
namespace {

// So many entries, of a plan that nobody has, that who has not read the first of them never will.
void Lap(OrderLog* log) {
  for (uint64_t position = log->Head(), end = position + kLogSlots + 2; position < end; ++position) {
    ASSERT_TRUE(
        log->TryAppend(position, {.kind = LogKind::kStart, .mask = 0, .plan = kLogIdMask, .count = 0}));
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
  EngineNode node(1, 8, HeldBackend::Wrapper(&gate));
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
  ASSERT_TRUE(node.Await(
      0, [](const v1::Message& m) { return m.has_ended(); }, &ended));
  EXPECT_EQ(ended.ended().code(), static_cast<int>(Code::kDataLoss)) << ended.ended().message();
}

// A backend takes seconds to come, and the log does not wait for it.
TEST(LappedTest, AnEngineBeginsWhereTheLogIsOnceItsBackendIsThere) {
  const UniqueFd log_fd = std::move(*OrderLog::Create()), stats_fd = std::move(*CreateStatsArea(8, 8));
  OrderLog log = std::move(*OrderLog::Map(log_fd.get()));
  auto sockets = std::move(*SeqpacketPair());
  const BackendFactory slow = [&log](const BackendRequest&) -> Result<std::unique_ptr<Backend>> {
    Lap(&log);
    return MakeHostBackend({});
  };
  std::thread running([engine = std::make_unique<Engine>(std::move(sockets.second), slow)]() mutable {
    const Status end = engine->Run();
    EXPECT_TRUE(end.ok()) << end.ToString();
    engine.reset();  // its end of the socket too
  });
  v1::Command start, ping;
  start.set_id(1);
  start.mutable_start()->set_generation(2);
  ping.set_id(2);
  ping.mutable_ping();
  EXPECT_TRUE(
      SendMessage(sockets.first.get(), start.SerializeAsString(), {log_fd.get(), stats_fd.get()}).ok());
  uint64_t answered = 0;
  while (answered < 2) {
    const Result<FdMessage> received = ReceiveMessage(sockets.first.get());
    v1::Message message;
    if (!received.ok() || !message.ParseFromString(received->body)) break;
    if (!message.has_ack()) continue;
    EXPECT_EQ(message.ack().code(), 0) << message.ack().message();
    answered = message.ack().id();
    // By its answer to the first it has not looked at the log yet; by that to the second it has.
    if (answered == 1) {
      EXPECT_TRUE(SendMessage(sockets.first.get(), ping.SerializeAsString()).ok());
    }
  }
  EXPECT_EQ(answered, 2u);
  sockets.first.Reset();
  running.join();
}

}  // namespace
}  // namespace tandem::engine
