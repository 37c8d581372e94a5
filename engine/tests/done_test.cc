// The time between a launch's done word and the engine's own: the client knows of the end, the engine does
// not yet.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tests/gather_fixture.h"
#include "engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

// Lane 0, whose writes of the engine's completion word wait for a gate.
class GatedLane : public WrappedLane {
 public:
  GatedLane(std::unique_ptr<Lane> wrapped, const WrappedBackend& from, const Word* gate)
      : WrappedLane(std::move(wrapped)), from_(from), gate_(gate) {}
  Status WriteWord(Word* word, uint64_t value) override {
    if (word == from_.own_words()) TANDEM_RETURN_IF_ERROR(lane().WaitWord(gate_, 1));
    return WrappedLane::WriteWord(word, value);
  }

 private:
  const WrappedBackend& from_;
  const Word* gate_;
};

class DoneTest : public GatherTest {
 protected:
  DoneTest()
      : GatherTest(2, 8, [this](std::unique_ptr<Backend> backend) { return Gated(std::move(backend)); }) {}
  ~DoneTest() override { Gate(true); }

  std::unique_ptr<Backend> Gated(std::unique_ptr<Backend> backend) {
    return std::make_unique<WrappedBackend>(
        std::move(backend),
        [this](std::unique_ptr<Lane> lane, int index, WrappedBackend& from) -> std::unique_ptr<Lane> {
          if (index != 0) return lane;
          return std::make_unique<GatedLane>(std::move(lane), from, &gate_);
        });
  }
  void Gate(bool open) { gate_.store(open ? 1 : 0, std::memory_order_release); }

  // Two channels a rank, and a plan.
  void OpenTwice(uint64_t deadline_ms = 60000) {
    Open(deadline_ms);
    for (int gpu : gpus_) others_.push_back(node_.OpenChannel(gpu));
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
  // Closes the gate once the engines know of all ends: what is still before it then would hold up all that
  // follows.
  void CloseGate() {
    for (int gpu : gpus_) EXPECT_TRUE(node_.AwaitQueued(gpu, 0));
    Gate(false);
  }
  // A launch whose clients know of its end and whose engines do not.
  uint64_t LaunchBehindTheGate() {
    CloseGate();
    const uint64_t sequence = LaunchBy(channels_);
    EXPECT_EQ(CodeOf(channels_, sequence), Code::kOk);
    return sequence;
  }
  // So long that every engine has looked at its channels many times.
  static void LetThemLook() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  // An engine that has answered has looked at what came before.
  void Ping() {
    for (int gpu : gpus_) {
      v1::Command ping;
      ping.mutable_ping();
      EXPECT_TRUE(node_.Call(gpu, ping).ok());
    }
  }

  Word gate_{1};
  Channels others_;
  uint64_t plan_ = 0;
};

TEST_F(DoneTest, ALaunchOfThePlanByAnotherChannelWaitsForTheEnginesOwnWord) {
  OpenTwice();
  for (int round = 0; round < 3; ++round) {
    LaunchBehindTheGate();
    const uint64_t next = LaunchBy(others_);
    LetThemLook();
    for (const auto& channel : others_) EXPECT_LT(channel->producer.Done(), next);
    Gate(true);
    EXPECT_EQ(CodeOf(others_, next), Code::kOk);
  }
}

TEST_F(DoneTest, SoDoesOneByTheSameChannel) {
  OpenTwice();
  LaunchBehindTheGate();
  const uint64_t next = LaunchBy(channels_);
  LetThemLook();
  for (const auto& channel : channels_) EXPECT_LT(channel->producer.Done(), next);
  Gate(true);
  EXPECT_EQ(CodeOf(channels_, next), Code::kOk);
}

TEST_F(DoneTest, CapturedLaunchesOfOnePlanFollowOneAnother) {
  OpenTwice();
  std::vector<int> slots;
  for (int i = 0; i < 2; ++i) {
    for (auto& channel : channels_) {
      LaunchEntry entry = Gather(plan_);
      if (const int slot = channel->producer.Arm(&entry).value(); channel == channels_[0])
        slots.push_back(slot);
    }
  }
  const auto ring = [&](int slot) {
    for (auto& channel : channels_) {
      channel->producer.captured_done(slot)->store(0);
      channel->producer.doorbell(slot)->store(1);
    }
  };
  const auto ended = [&](int slot) {
    for (auto& channel : channels_) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
      while (channel->producer.captured_done(slot)->load() == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
      EXPECT_EQ(channel->producer.captured_done(slot)->load(), 1u);
      const Status status = channel->producer.CapturedOutcome(slot).status;
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  };
  for (int round = 0; round < 3; ++round) {
    CloseGate();
    ring(slots[0]);
    ended(slots[0]);
    ring(slots[1]);
    LetThemLook();
    for (auto& channel : channels_) EXPECT_EQ(channel->producer.captured_done(slots[1])->load(), 0u);
    Gate(true);
    ended(slots[1]);
  }
}

TEST_F(DoneTest, ALaunchByMessageWaitsToo) {
  OpenTwice();
  LaunchBehindTheGate();
  for (int gpu : gpus_) {
    v1::Command command;
    v1::Launch* launch = command.mutable_launch();
    launch->set_launch_id(700);
    launch->set_plan_id(plan_);
    launch->set_session_id(1);
    launch->set_generation(group_.generation);
    launch->add_bindings()->set_registration_id(group_.registration);
    ASSERT_TRUE(node_.Call(gpu, command).ok());
  }
  Ping();
  Gate(true);
  for (int gpu : gpus_) {
    v1::Message message;
    ASSERT_TRUE(node_.Await(
        gpu, [](const v1::Message& each) { return each.has_launch_done(); }, &message));
    EXPECT_EQ(message.launch_done().code(), 0) << message.launch_done().message();
  }
}

TEST_F(DoneTest, WhatComesBehindOneThatWaitsOverlapsWithIt) {
  OpenTwice();
  Channels third;
  for (int gpu : gpus_) third.push_back(node_.OpenChannel(gpu));
  LaunchBehindTheGate();
  const uint64_t next = LaunchBy(others_);
  LetThemLook();
  const uint64_t late = LaunchBy(third);
  LetThemLook();
  Gate(true);
  EXPECT_EQ(CodeOf(others_, next), Code::kOk);
  EXPECT_EQ(CodeOf(third, late), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(others_, LaunchBy(others_)), Code::kOk);
}

// Also one whose lanes run: nothing waits for it.
TEST_F(DoneTest, WhatComesBeforeDoneOverlapsAtOnce) {
  OpenTwice();
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
  for (auto& other : others_) EXPECT_EQ(other->LaunchAndWait(entry).status.code(), Code::kFailedPrecondition);
  for (int rank = 0; rank < 2; ++rank) node_.SignalWord(group_, rank, 1 - rank, 0)->store(uint64_t{1} << 40);
  EXPECT_EQ(CodeOf(channels_, 1), Code::kOk);
}

TEST_F(DoneTest, ABreakLeavesTheOutcomeOfWhatSaysDoneAlone) {
  OpenTwice();
  const uint64_t sequence = LaunchBehindTheGate();
  const uint64_t next = LaunchBy(others_);
  LetThemLook();
  for (int gpu : gpus_)
    ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 has died", "rank 1").ok());
  EXPECT_EQ(CodeOf(channels_, sequence), Code::kOk);
  // What waits behind it needs nobody's word now.
  EXPECT_EQ(CodeOf(others_, next), Code::kUnavailable);
  Gate(true);
  EXPECT_EQ(CodeOf(channels_, sequence), Code::kOk);
}

TEST_F(DoneTest, APlanThatIsRemovedWaitsForTheEnginesOwnWord) {
  OpenTwice();
  LaunchBehindTheGate();
  const uint64_t next = LaunchBy(others_);
  LetThemLook();
  std::vector<uint64_t> removals;
  for (int gpu : gpus_) {
    v1::Command remove;
    remove.mutable_remove_plan()->set_plan_id(plan_);
    removals.push_back(node_.Send(gpu, remove).value());
  }
  Ping();
  Gate(true);
  for (int gpu : gpus_) {
    const uint64_t id = removals[static_cast<size_t>(gpu)];
    v1::Message message;
    ASSERT_TRUE(node_.Await(
        gpu, [id](const v1::Message& each) { return each.has_ack() && each.ack().id() == id; }, &message));
    EXPECT_EQ(message.ack().code(), 0);
  }
  for (const auto& channel : others_) ASSERT_TRUE(channel->Wait(next));
}

// Nothing of a channel is let go while its lane may still have to be looked at.
TEST_F(DoneTest, ChannelsCloseAndRegistrationsGoMeanwhile) {
  OpenTwice();
  LaunchBehindTheGate();
  for (int gpu : gpus_) {
    v1::Command close, remove;
    close.mutable_close_channel()->set_channel_id(channels_[static_cast<size_t>(gpu)]->id);
    remove.mutable_remove_registration()->set_registration_id(group_.registration);
    EXPECT_TRUE(node_.Call(gpu, close).ok());
    EXPECT_TRUE(node_.Call(gpu, remove).ok());
  }
  Ping();
  Gate(true);
  const uint64_t next = LaunchBy(others_);
  for (const auto& channel : others_) {
    ASSERT_TRUE(channel->Wait(next));
    EXPECT_FALSE(channel->producer.Outcome(next).status.ok()) << "its memory is gone";
  }
}

TEST_F(DoneTest, AnEngineThatEndsMeanwhileLeavesTheOutcomeAlone) {
  OpenTwice();
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
