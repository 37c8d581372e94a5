// Queues: order, aliasing, waits by cyclic comparison, blocked queues, shutdown, and the delay mode.
#include "kernels/host/host_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/host/word_wait.h"

namespace tandem::host {
namespace {

using std::chrono::steady_clock;

steady_clock::time_point Soon() { return steady_clock::now() + std::chrono::seconds(60); }

TEST(WordTest, ComparisonIsCyclic) {
  EXPECT_TRUE(Reached(5, 5));
  EXPECT_TRUE(Reached(6, 5));
  EXPECT_FALSE(Reached(4, 5));
  EXPECT_TRUE(Reached(uint64_t{1} << 62, (uint64_t{1} << 61) - 1));
  EXPECT_FALSE(Reached(~uint64_t{0}, 5));
  EXPECT_TRUE(Reached(2, ~uint64_t{0}));
}

TEST(HostQueueTest, RunsTasksInOrder) {
  HostQueue queue(nullptr);
  std::vector<int> order;
  uint64_t ticket = 0;
  for (int i = 0; i < 1000; ++i) {
    ticket = i % 3 == 0 ? queue.SubmitShort([&order, i](const TaskContext&) { order.push_back(i); })
                        : queue.Submit([&order, i](const TaskContext&) { order.push_back(i); });
  }
  ASSERT_TRUE(queue.WaitCompleted(ticket, Soon()));
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(HostQueueTest, WriteOnIdleQueueIsDoneAtOnce) {
  HostQueue queue(nullptr);
  std::atomic<uint64_t> word{0};
  uint64_t ticket = queue.SubmitWrite(&word, 7);
  EXPECT_EQ(word.load(), 7u);
  EXPECT_TRUE(queue.Completed(ticket));
}

TEST(HostQueueTest, WaitHoldsWhatFollows) {
  HostQueue queue(nullptr);
  std::atomic<uint64_t> gate{0}, after{0};
  queue.SubmitWait(&gate, 3);
  uint64_t ticket = queue.SubmitWrite(&after, 1);
  gate.store(2);
  EXPECT_FALSE(queue.WaitCompleted(ticket, steady_clock::now() + std::chrono::milliseconds(20)));
  EXPECT_EQ(after.load(), 0u);
  gate.store(uint64_t{1} << 62);
  EXPECT_TRUE(queue.WaitCompleted(ticket, Soon()));
  EXPECT_EQ(after.load(), 1u);
}

TEST(HostQueueTest, ShutdownAbandonsABlockedWait) {
  std::atomic<uint64_t> gate{0};
  std::atomic<bool> ran{false};
  auto held = std::make_shared<int>(1);
  HostQueue queue(nullptr);
  uint64_t ticket = queue.SubmitWait(&gate, 1);
  ticket = queue.Submit([&ran, held](const TaskContext&) { ran = true; });
  queue.Shutdown();
  EXPECT_TRUE(queue.Completed(ticket));
  EXPECT_FALSE(ran.load());
  EXPECT_EQ(held.use_count(), 1);
  queue.Submit([&ran](const TaskContext&) { ran = true; });
  EXPECT_FALSE(ran.load());
}

TEST(HostQueueTest, ManySubmittersLoseNothing) {
  HostQueue queue(nullptr);
  int64_t sum = 0;  // touched by the queue's tasks only
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        if (i % 2 == 0)
          queue.Submit([&sum](const TaskContext&) { ++sum; });
        else
          queue.SubmitShort([&sum](const TaskContext&) { ++sum; });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  uint64_t last = queue.Submit([](const TaskContext&) {});
  ASSERT_TRUE(queue.WaitCompleted(last, Soon()));
  EXPECT_EQ(sum, 8000);
  EXPECT_EQ(last, 8001u);
}

TEST(HostQueueSetTest, RefusesCountsOutOfRange) {
  EXPECT_EQ(HostQueueSet::Create(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HostQueueSet::Create(33).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HostQueueSet::Create(1, -1).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(HostQueueSet::Create(32).ok());
}

TEST(HostQueueSetTest, LanesAliasRoundRobinAndBlockEachOther) {
  auto set = *HostQueueSet::Create(2);
  HostQueue* first = set->Next(1);
  HostQueue* second = set->Next(1);
  EXPECT_NE(first, second);
  EXPECT_EQ(set->Next(1), first);
  EXPECT_EQ(set->Next(0), second);
  // A lane behind another one's wait on the same queue does not run, one on the other queue does.
  std::atomic<uint64_t> gate{0}, same{0}, other{0};
  first->SubmitWait(&gate, 1);
  uint64_t hidden = first->SubmitWrite(&same, 1);
  uint64_t free = second->SubmitWrite(&other, 1);
  EXPECT_TRUE(second->WaitCompleted(free, Soon()));
  EXPECT_EQ(same.load(), 0u);
  gate.store(1);
  EXPECT_TRUE(first->WaitCompleted(hidden, Soon()));
}

TEST(HostQueueSetTest, DelayModeKeepsTheOrderOfALane) {
  auto set = *HostQueueSet::Create(2, 100, 5);
  HostQueue* writer = set->Next(1);
  HostQueue* reader = set->Next(1);
  int data = 0;
  std::atomic<uint64_t> word{0};
  int wrong = 0;
  uint64_t ticket = 0;
  for (int i = 1; i <= 30; ++i) {
    writer->Submit([&data, i](const TaskContext&) { data = i; });
    writer->SubmitWrite(&word, static_cast<uint64_t>(2 * i - 1));
    reader->SubmitWait(&word, static_cast<uint64_t>(2 * i - 1));
    reader->Submit([&, i](const TaskContext&) { wrong += data != i; });
    reader->SubmitWrite(&word, static_cast<uint64_t>(2 * i));
    ticket = writer->SubmitWait(&word, static_cast<uint64_t>(2 * i));
  }
  ASSERT_TRUE(writer->WaitCompleted(ticket, Soon()));
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tandem::host
