// The time between the engine's completion word and a launch's done word: the engine knows of the end, and
// lane 0 still writes into the client's channel.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tests/gather_fixture.h"
#include "engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

// Lane 0, whose writes of done words (the words behind the completion word) wait for a gate. Sets `no_done`
// if a completion word goes out without a done word behind it.
class GatedLane : public WrappedLane {
 public:
  GatedLane(std::unique_ptr<Lane> wrapped, const WrappedBackend& from, const Word* gate,
            std::atomic<bool>* no_done)
      : WrappedLane(std::move(wrapped)), from_(from), gate_(gate), no_done_(no_done) {}
  Status WriteWord(Word* word, uint64_t value) override {
    if (std::exchange(behind_completion_, false)) TANDEM_RETURN_IF_ERROR(lane().WaitWord(gate_, 1));
    behind_completion_ = word == from_.own_words();
    return WrappedLane::WriteWord(word, value);
  }
  Status FlushWords() override {
    if (std::exchange(behind_completion_, false)) no_done_->store(true);
    return WrappedLane::FlushWords();
  }

 private:
  const WrappedBackend& from_;
  const Word* gate_;
  std::atomic<bool>* no_done_;
  bool behind_completion_ = false;
};

// Counts what the engine takes back of host memory: the words of channels that it has let go of.
class CountingBackend : public WrappedBackend {
 public:
  CountingBackend(std::unique_ptr<Backend> backend, LaneWrapper wrap, std::atomic<int>* taken_back)
      : WrappedBackend(std::move(backend), std::move(wrap)), taken_back_(taken_back) {}
  Status UnregisterHostMemory(void* address) override {
    taken_back_->fetch_add(1);
    return backend().UnregisterHostMemory(address);
  }

 private:
  std::atomic<int>* taken_back_;
};

class DoneTest : public GatherTest {
 protected:
  DoneTest()
      : GatherTest(2, 8, [this](std::unique_ptr<Backend> backend) { return Gated(std::move(backend)); }) {}
  ~DoneTest() override { Gate(true); }

  std::unique_ptr<Backend> Gated(std::unique_ptr<Backend> backend) {
    return std::make_unique<CountingBackend>(
        std::move(backend),
        [this](std::unique_ptr<Lane> lane, int index, WrappedBackend& from) -> std::unique_ptr<Lane> {
          if (index != 0) return lane;
          return std::make_unique<GatedLane>(std::move(lane), from, &gate_, &no_done_);
        },
        &taken_back_);
  }
  void Gate(bool open) { gate_.store(open ? 1 : 0, std::memory_order_release); }
  static bool Eventually(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return holds();
  }

  void OpenGated() {
    Open();
    plan_ = AddGatherPlan();
  }
  using Channels = std::vector<std::unique_ptr<TestChannel>>;
  // Launches the plan on all ranks; their sequences are equal.
  uint64_t LaunchBy(const Channels& channels) {
    uint64_t sequence = 0;
    for (const auto& channel : channels) sequence = channel->Launch(Gather(plan_));
    return sequence;
  }
  // Once all of them have ended: rank 0's code.
  Code CodeOf(const Channels& channels, uint64_t sequence) {
    for (const auto& channel : channels) EXPECT_TRUE(channel->Wait(sequence));
    for (const auto& channel : channels) {
      EXPECT_EQ(channel->producer.Outcome(sequence).status.code(),
                channels[0]->producer.Outcome(sequence).status.code());
    }
    return channels[0]->producer.Outcome(sequence).status.code();
  }
  // A launch whose end the engines know of and the clients do not.
  uint64_t LaunchBehindTheGate() {
    Gate(false);
    const uint64_t sequence = LaunchBy(channels_);
    for (int gpu : gpus_) {
      EXPECT_TRUE(Eventually([&] { return node_.stats(gpu).Launches() == 1; }));
      EXPECT_TRUE(node_.AwaitQueued(gpu, 0));
    }
    for (const auto& channel : channels_) EXPECT_LT(channel->producer.Done(), sequence);
    return sequence;
  }

  Word gate_{1};
  std::atomic<int> taken_back_{0};
  std::atomic<bool> no_done_{false};
  uint64_t plan_ = 0;
};

// A client that sees done may launch the plan at once, by a channel that waits for nothing of the first
// one's.
TEST_F(DoneTest, WhoSeesDoneMayLaunchThePlanByAnotherChannel) {
  OpenGated();
  Channels others;
  for (int gpu : gpus_) others.push_back(node_.OpenChannel(gpu));
  for (int round = 0; round < 300; ++round) {
    EXPECT_EQ(CodeOf(channels_, LaunchBy(channels_)), Code::kOk) << round;
    EXPECT_EQ(CodeOf(others, LaunchBy(others)), Code::kOk) << round;
  }
  EXPECT_FALSE(no_done_) << "lane 0 writes done before the completion word";
}

// A launch before the end overlaps, whatever its client has written into its words.
TEST_F(DoneTest, WhatComesBeforeTheEndOverlapsAtOnce) {
  OpenGated();
  Channels others;
  for (int gpu : gpus_) others.push_back(node_.OpenChannel(gpu));
  std::vector<plan::RankProgram> programs(2);
  for (int rank = 0; rank < 2; ++rank) {
    plan::RankProgram& program = programs[static_cast<size_t>(rank)];
    program.rank = rank;
    program.world_size = 2;
    program.signal_count = 1;
    plan::Step wait;
    wait.work = plan::WaitStep{static_cast<uint8_t>(1 - rank), 0};
    program.steps.push_back(wait);
  }
  const LaunchEntry entry = Entry(node_.AddPlan(&group_, programs, {}));
  for (auto& channel : channels_) ASSERT_EQ(channel->Launch(entry), 1u);
  for (int gpu : gpus_) {
    ASSERT_TRUE(node_.AwaitQueue(
        gpu, [](const v1::Queue& queue) { return queue.items_size() == 1 && queue.items(0).started(); }));
  }
  for (auto& channel : channels_) channel->producer.done()->store(1);
  for (auto& other : others) EXPECT_EQ(other->LaunchAndWait(entry).status.code(), Code::kFailedPrecondition);
  for (int rank = 0; rank < 2; ++rank) node_.SignalWord(group_, rank, 1 - rank, 0)->store(uint64_t{1} << 40);
  for (int gpu : gpus_) ASSERT_TRUE(node_.AwaitQueued(gpu, 0));
  EXPECT_EQ(CodeOf(channels_, 1), Code::kOk);
}

TEST_F(DoneTest, ABreakLeavesTheOutcomeOfWhatHasEndedAlone) {
  OpenGated();
  const uint64_t sequence = LaunchBehindTheGate();
  for (int gpu : gpus_) ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 has died", 1).ok());
  Gate(true);
  EXPECT_EQ(CodeOf(channels_, sequence), Code::kOk);
}

// The pages of a channel that is closed stay mapped until lane 0 has written into them.
TEST_F(DoneTest, AClosedChannelIsKeptUntilItsLaneHasWritten) {
  OpenGated();
  const uint64_t sequence = LaunchBehindTheGate();
  v1::Command close;
  close.mutable_close_channel()->set_channel_id(channels_[0]->id);
  ASSERT_TRUE(node_.Call(0, close).ok());
  for (int look = 0; look < 10; ++look) {
    v1::Command ping;
    ping.mutable_ping();
    ASSERT_TRUE(node_.Call(0, ping).ok());
    EXPECT_EQ(taken_back_.load(), 0);
  }
  Gate(true);
  ASSERT_TRUE(channels_[0]->Wait(sequence));
  EXPECT_TRUE(Eventually([&] { return taken_back_.load() == 1; }));
}

// A channel has been released while its lane was about to write: a stream that waits for later launches
// continues.
TEST_F(DoneTest, AReleasedChannelStaysSoWhenItsLaneWritesLater) {
  OpenGated();
  const uint64_t sequence = LaunchBehindTheGate();
  Result<Mapping> ring = Mapping::Map(channels_[0]->memory.ring.get(), 0, RingBytes(64), true);
  ASSERT_TRUE(ring.ok());
  ring->As<RingHeader>()->producer.store(1000);  // the engine releases it
  ASSERT_TRUE(Eventually([&] { return channels_[0]->producer.Done() == kReleaseValue; }));
  EXPECT_EQ(channels_[0]->producer.Outcome(sequence).status.code(), Code::kInvalidArgument);
  Gate(true);
  // It has ended by itself, and the channel is released again behind that.
  ASSERT_TRUE(Eventually([&] { return channels_[0]->producer.Outcome(sequence).status.ok(); }));
  EXPECT_TRUE(Eventually([&] { return channels_[0]->producer.Done() == kReleaseValue; }));
}

TEST_F(DoneTest, AnEngineThatEndsMeanwhileLeavesTheOutcomeAlone) {
  OpenGated();
  const uint64_t sequence = LaunchBehindTheGate();
  std::thread opens([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Gate(true);
  });
  node_.EndEngine(0);
  opens.join();
  EXPECT_EQ(channels_[0]->producer.Outcome(sequence).status.code(), Code::kOk);
}

}  // namespace
}  // namespace tandem::engine
