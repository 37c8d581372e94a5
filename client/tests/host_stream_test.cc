// The client's stream: order, events, deadlines, capture across streams, replay, and the life of user
// objects.
#include "tandem/host_stream.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tandem {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<HostStream> NewStream() { return std::move(*HostStream::Create()); }

TEST(HostStreamTest, QueuesAreFixedOnceAStreamExists) {
  EXPECT_EQ(SetHostQueues(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(SetHostQueues(33).code(), Code::kInvalidArgument);
  auto stream = NewStream();
  EXPECT_EQ(SetHostQueues(3).code(), Code::kFailedPrecondition);
  EXPECT_GE(HostQueues(), 1);
}

TEST(HostStreamTest, RunsInOrderAndSynchronizes) {
  auto stream = NewStream();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream->Enqueue([&order, i] { order.push_back(i); }).ok());
  ASSERT_TRUE(stream->Synchronize(60s).ok());
  EXPECT_TRUE(stream->Query());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_EQ(order[99], 99);
}

TEST(HostStreamTest, SynchronizeEndsAtItsDeadline) {
  auto stream = NewStream();
  std::atomic<uint64_t> gate{0};
  ASSERT_TRUE(stream->WaitWord(&gate, 1).ok());
  EXPECT_EQ(stream->Synchronize(20ms).code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(stream->Query());
  gate = 1;
  EXPECT_TRUE(stream->Synchronize(60s).ok());
}

TEST(HostStreamTest, EventsOrderStreams) {
  auto producer = NewStream(), consumer = NewStream();
  HostEvent ready;
  EXPECT_TRUE(ready.Query());
  std::atomic<uint64_t> gate{0};
  int data = 0, seen = 0;
  ASSERT_TRUE(producer->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(producer->Enqueue([&] { data = 42; }).ok());
  ASSERT_TRUE(producer->Record(ready).ok());
  ASSERT_TRUE(consumer->Wait(ready).ok());
  ASSERT_TRUE(consumer->Enqueue([&] { seen = data; }).ok());
  EXPECT_FALSE(ready.Query());
  EXPECT_EQ(ready.TimeNs(), 0);
  EXPECT_EQ(ready.Synchronize(1ms).code(), Code::kDeadlineExceeded);
  gate = 1;
  ASSERT_TRUE(consumer->Synchronize(60s).ok());
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(ready.Synchronize(60s).ok());
  EXPECT_GT(ready.TimeNs(), 0);
}

TEST(HostGraphTest, CaptureRunsNothingAndReplayRunsAll) {
  auto stream = NewStream();
  int runs = 0;
  std::atomic<uint64_t> word{0};
  ASSERT_TRUE(stream->BeginCapture().ok());
  EXPECT_TRUE(stream->IsCapturing());
  EXPECT_EQ(stream->BeginCapture().code(), Code::kFailedPrecondition);
  EXPECT_EQ(stream->Synchronize(1s).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(stream->Enqueue([&] { ++runs; }).ok());
  ASSERT_TRUE(stream->WriteWord(&word, 9).ok());
  ASSERT_TRUE(stream->WaitWord(&word, 9).ok());
  auto graph = stream->EndCapture();
  ASSERT_TRUE(graph.ok());
  EXPECT_FALSE(stream->IsCapturing());
  EXPECT_EQ(graph->node_count(), 3u);
  ASSERT_TRUE(stream->Synchronize(60s).ok());
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(word.load(), 0u);
  auto exec = graph->Instantiate();
  ASSERT_TRUE(exec.ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(exec->Launch(*stream).ok());
  ASSERT_TRUE(stream->Synchronize(60s).ok());
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(word.load(), 9u);
}

TEST(HostGraphTest, LaunchesOnTwoStreamsFollowEachOther) {
  auto first = NewStream(), second = NewStream();
  std::atomic<uint64_t> gate{0};
  std::atomic<int> runs{0};
  ASSERT_TRUE(first->BeginCapture().ok());
  ASSERT_TRUE(first->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(first->Enqueue([&] { ++runs; }).ok());
  auto graph = first->EndCapture();
  ASSERT_TRUE(graph.ok());
  auto exec = graph->Instantiate();
  ASSERT_TRUE(exec->Launch(*first).ok());
  ASSERT_TRUE(exec->Launch(*second).ok());
  EXPECT_EQ(second->Synchronize(20ms).code(), Code::kDeadlineExceeded);
  gate = 1;
  ASSERT_TRUE(second->Synchronize(60s).ok());
  EXPECT_EQ(runs.load(), 2);
}

TEST(HostGraphTest, ForkAndJoinAcrossStreams) {
  auto origin = NewStream(), side = NewStream();
  HostEvent fork, join;
  int value = 0, doubled = 0, result = 0;
  ASSERT_TRUE(origin->BeginCapture().ok());
  ASSERT_TRUE(origin->Enqueue([&] { ++value; }).ok());
  ASSERT_TRUE(origin->Record(fork).ok());
  ASSERT_TRUE(side->Wait(fork).ok());
  EXPECT_TRUE(side->IsCapturing());
  EXPECT_FALSE(side->EndCapture().ok());
  ASSERT_TRUE(side->Enqueue([&] { doubled = 2 * value; }).ok());
  ASSERT_TRUE(side->Record(join).ok());
  ASSERT_TRUE(origin->Wait(join).ok());
  ASSERT_TRUE(origin->Enqueue([&] { result = doubled + 1; }).ok());
  auto graph = origin->EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  EXPECT_FALSE(side->IsCapturing());
  auto exec = graph->Instantiate();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(exec->Launch(*origin).ok());
    ASSERT_TRUE(origin->Synchronize(60s).ok());
    EXPECT_EQ(result, 2 * i + 1);
  }
}

TEST(HostGraphTest, UnjoinedWorkIsRefused) {
  auto origin = NewStream(), side = NewStream();
  HostEvent fork;
  ASSERT_TRUE(origin->BeginCapture().ok());
  ASSERT_TRUE(origin->Record(fork).ok());
  ASSERT_TRUE(side->Wait(fork).ok());
  ASSERT_TRUE(side->Enqueue([] {}).ok());
  EXPECT_EQ(origin->EndCapture().status().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(origin->IsCapturing());
  EXPECT_FALSE(side->IsCapturing());
  EXPECT_EQ(side->Wait(fork).code(), Code::kFailedPrecondition);
  EXPECT_EQ(origin->EndCapture().status().code(), Code::kFailedPrecondition);
}

// Work that one event orders, by calls on three streams and by two graphs: never two pieces at once, and all
// of them.
TEST(HostGraphTest, AnExternalEventOrdersCallsAndReplays) {
  HostEvent order;
  int running = 0, count = 0, overlaps = 0;  // plain: the order is what keeps them right
  const auto work = [&] {
    if (++running > 1) ++overlaps;
    ++count;
    --running;
  };
  std::vector<std::unique_ptr<HostStream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(NewStream());
  const auto launch = [&](HostStream& stream) {
    ASSERT_TRUE(stream.WaitExternal(order).ok());
    ASSERT_TRUE(stream.Enqueue(work).ok());
    ASSERT_TRUE(stream.RecordExternal(order).ok());
  };
  std::vector<HostGraphExec> graphs;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(streams[0]->BeginCapture().ok());
    launch(*streams[0]);
    launch(*streams[0]);
    auto graph = streams[0]->EndCapture();
    ASSERT_TRUE(graph.ok());
    auto exec = graph->Instantiate();
    ASSERT_TRUE(exec.ok());
    graphs.push_back(std::move(*exec));
  }
  EXPECT_EQ(count, 0);
  EXPECT_TRUE(order.Query());
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    launch(*streams[static_cast<size_t>(i % 3)]);
    ASSERT_TRUE(graphs[static_cast<size_t>(i % 2)].Launch(*streams[static_cast<size_t>((i + 1) % 3)]).ok());
  }
  ASSERT_TRUE(order.Synchronize(60s).ok());
  for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize(60s).ok());
  EXPECT_EQ(count, 3 * kRounds);
  EXPECT_EQ(overlaps, 0);
}

TEST(HostGraphTest, UserObjectsLiveAsLongAsAnyExecutableGraphOrLaunch) {
  auto stream = NewStream();
  std::atomic<uint64_t> gate{0};
  auto object = std::make_shared<int>(1);
  std::weak_ptr<int> watch = object;
  EXPECT_EQ(stream->RetainInCapture(object).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(stream->BeginCapture().ok());
  ASSERT_TRUE(stream->RetainInCapture(object).ok());
  ASSERT_TRUE(stream->WaitWord(&gate, 1).ok());
  object.reset();
  {
    auto graph = stream->EndCapture();
    ASSERT_TRUE(graph.ok());
    auto exec = graph->Instantiate();
    ASSERT_TRUE(exec.ok());
    { HostGraph gone = std::move(*graph); }
    EXPECT_FALSE(watch.expired());
    ASSERT_TRUE(exec->Launch(*stream).ok());
  }
  // The launch in flight holds it.
  EXPECT_FALSE(watch.expired());
  gate = 1;
  ASSERT_TRUE(stream->Synchronize(60s).ok());
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace tandem
