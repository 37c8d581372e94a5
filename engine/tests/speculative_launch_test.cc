// Speculative launches: a kernel that waits on a lane for its launch must change nothing but when things
// happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "engine/launch/forecast.h"
#include "engine/tests/gather_fixture.h"
#include "engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

TEST(ForecastTest, TrustsWhatItHasSeenTwiceInARow) {
  Forecast forecast;
  EXPECT_FALSE(forecast.Trusted());
  forecast.Saw(3);
  EXPECT_FALSE(forecast.Trusted());
  forecast.Saw(3);
  EXPECT_TRUE(forecast.Trusted());
  EXPECT_EQ(forecast.next(), 3);
  forecast.Saw(5);
  EXPECT_FALSE(forecast.Trusted());
  forecast.Saw(5);
  EXPECT_TRUE(forecast.Trusted());
}

TEST(ForecastTest, EveryWrongOneAsksForMore) {
  Forecast forecast(0);
  EXPECT_TRUE(forecast.Trusted());
  for (int needed = 4; needed <= 64; needed *= 4) {
    forecast.WasWrong();
    for (int seen = 0; seen < needed; ++seen) {
      EXPECT_FALSE(forecast.Trusted()) << seen << " of " << needed;
      forecast.Saw(0);
    }
    EXPECT_TRUE(forecast.Trusted());
  }
}

class SpeculativeLaunchTest : public GatherTest {
 protected:
  static constexpr auto kWaitBudget = std::chrono::minutes(1);

  explicit SpeculativeLaunchTest(const EngineNode::BackendWrapper& wrap = {}) : GatherTest(2, 8, wrap) {}

  // A captured launch on every rank; slots are alike on all.
  int CaptureEntry(LaunchEntry entry) {
    int slot = -1;
    for (auto& channel : channels_) {
      LaunchEntry own = entry;
      slot = channel->producer.Arm(&own).value();
    }
    return slot;
  }
  int Capture(uint64_t plan) { return CaptureEntry(Gather(plan)); }

  void Ring(int slot) {
    for (auto& channel : channels_) channel->producer.doorbell(slot)->store(1);
  }

  bool Ended(int slot) {
    const auto end = std::chrono::steady_clock::now() + kWaitBudget;
    for (auto& channel : channels_) {
      while (channel->producer.captured_done(slot)->load() == 0) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::yield();
      }
      channel->producer.captured_done(slot)->store(0);
    }
    return true;
  }

  // New data on all ranks, one replay of `slot`, and what it must have gathered.
  void Replay(int slot) {
    Fill();
    Ring(slot);
    ASSERT_TRUE(Ended(slot));
    for (auto& channel : channels_) {
      const Status status = channel->producer.CapturedOutcome(slot).status;
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    ExpectGathered();
  }

  // Data that no earlier launch has gathered, and nothing gathered.
  void Fill() {
    for (int rank = 0; rank < node_.gpus(); ++rank) {
      std::fill_n(Data(rank), kGathered, ++value_);
      std::fill_n(Data(rank) + kGathered, kGathered * node_.gpus(), -1.0f);
    }
  }
  void ExpectGathered() {
    const float first = value_ - static_cast<float>(node_.gpus() - 1);
    for (int rank = 0; rank < node_.gpus(); ++rank) {
      for (int from = 0; from < node_.gpus(); ++from) {
        const float* gathered = Data(rank) + kGathered * (from + 1);
        EXPECT_EQ(std::count(gathered, gathered + kGathered, first + static_cast<float>(from)), kGathered)
            << rank << from;
      }
    }
  }
  void ExpectNothingGathered() {
    for (int rank = 0; rank < node_.gpus(); ++rank) {
      const float* gathered = Data(rank) + kGathered;
      EXPECT_EQ(std::count(gathered, gathered + kGathered * node_.gpus(), -1.0f), kGathered * node_.gpus())
          << rank;
    }
  }

  // Replays the slots in turn until every engine has begun to speculate; then `more` further rounds.
  void Learn(const std::vector<int>& slots, int more) {
    const auto end = std::chrono::steady_clock::now() + kWaitBudget;
    while (std::any_of(gpus_.begin(), gpus_.end(),
                       [&](int gpu) { return node_.stats(gpu).Speculated() == 0; })) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "nothing is launched speculatively";
      for (int slot : slots) Replay(slot);
    }
    for (int i = 0; i < more; ++i) {
      for (int slot : slots) Replay(slot);
    }
  }
  // Until the log has come to `position`, and then so long that what is expected next is likely to be on the
  // lanes. No command asks the engines: that would cancel it.
  void AwaitStarts(uint64_t position) {
    const auto end = std::chrono::steady_clock::now() + kWaitBudget;
    while (node_.log().Head() < position && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    const auto likely = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < likely) std::this_thread::yield();
  }
  uint64_t Cancelled(int gpu) { return node_.stats(gpu).Cancelled(); }
  // Whether a GPU has cancelled fewer kernels, and it is not `end` yet. On a busy machine another launch may
  // come before the kernel that is expected has been launched: no kernel is cancelled then.
  bool StillFewer(uint64_t kernels, std::chrono::steady_clock::time_point end) {
    return std::chrono::steady_clock::now() < end &&
           std::any_of(gpus_.begin(), gpus_.end(), [&](int gpu) { return Cancelled(gpu) < kernels; });
  }
  bool AwaitCancelled(int gpu, uint64_t kernels, std::chrono::milliseconds wait_budget) {
    const auto end = std::chrono::steady_clock::now() + wait_budget;
    while (Cancelled(gpu) < kernels && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return Cancelled(gpu) >= kernels;
  }
  // Whether a GPU has launched fewer kernels speculatively, and it is not `end` yet. A busy machine launches
  // few.
  bool SpeculatedFewer(uint64_t kernels, std::chrono::steady_clock::time_point end) {
    return std::chrono::steady_clock::now() < end && std::any_of(gpus_.begin(), gpus_.end(), [&](int gpu) {
             return node_.stats(gpu).Speculated() < kernels;
           });
  }

  float value_ = 0;
};

TEST_F(SpeculativeLaunchTest, ReplaysInAFixedOrderAreRight) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan()), Capture(AddGatherPlan()),
                                  Capture(AddGatherPlan())};
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  do {
    Learn(slots, 40);
  } while (SpeculatedFewer(5, end));
  for (int gpu : gpus_) EXPECT_GE(node_.stats(gpu).Speculated(), 5u) << gpu;
}

TEST_F(SpeculativeLaunchTest, OneLaunchReplayedOnItsOwnIsRight) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan())};
  Learn(slots, 40);
}

// The first kernel of the expected launch copies nothing when something else comes, and its own launch is
// right later on.
TEST_F(SpeculativeLaunchTest, AnotherLaunchThanExpectedCancelsTheKernel) {
  Open();
  const int first = Capture(AddGatherPlan()), second = Capture(AddGatherPlan()),
            other = CaptureEntry(Entry(node_.AddBarrierPlan(&group_)));
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  for (int round = 0; round < 3 || StillFewer(1, end); ++round) {
    Learn({first, second}, 20);
    Replay(first);  // now `second` is expected, unless a launch that is timed stands before it
    Fill();
    Ring(other);
    ASSERT_TRUE(Ended(other));
    ExpectNothingGathered();
    Replay(second);
  }
  for (int gpu : gpus_) EXPECT_GE(Cancelled(gpu), 1u) << gpu;
}

TEST_F(SpeculativeLaunchTest, LaunchesPushedAheadOfTheirStreamAreRight) {
  Open();
  const uint64_t plan = AddGatherPlan();
  std::vector<uint64_t> next(channels_.size());
  const auto push = [&] {
    for (size_t rank = 0; rank < channels_.size(); ++rank) next[rank] = channels_[rank]->Push(Gather(plan));
  };
  push();
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  for (int i = 0; i < 200 || SpeculatedFewer(5, end); ++i) {
    const std::vector<uint64_t> launch = next;
    push();
    Fill();
    for (size_t rank = 0; rank < channels_.size(); ++rank) channels_[rank]->Reach(launch[rank]);
    for (size_t rank = 0; rank < channels_.size(); ++rank)
      ASSERT_TRUE(channels_[rank]->Wait(launch[rank])) << i;
    ExpectGathered();
  }
  for (int gpu : gpus_) EXPECT_GE(node_.stats(gpu).Speculated(), 5u) << gpu;
}

TEST_F(SpeculativeLaunchTest, WhatNobodyComesForIsCancelledAfterAWhile) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan()), Capture(AddGatherPlan())};
  Learn(slots, 20);
  for (int gpu : gpus_) {
    const auto end = std::chrono::steady_clock::now() + kWaitBudget;
    bool cancelled = false;
    while (!cancelled && std::chrono::steady_clock::now() < end) {
      Learn(slots, 3);  // mostly, a first kernel follows
      const uint64_t before = Cancelled(gpu);
      Fill();
      cancelled = AwaitCancelled(gpu, before + 1, std::chrono::seconds(2));
      ExpectNothingGathered();
    }
    EXPECT_TRUE(cancelled) << gpu;
  }
  Replay(slots[0]);
}

// Commands that may block behind a lane find none that waits; a plan that is removed is not waited for.
TEST_F(SpeculativeLaunchTest, PlansComeAndGoBesideIt) {
  Open();
  const std::vector<uint64_t> plans = {AddGatherPlan(), AddGatherPlan()};
  const std::vector<int> slots = {Capture(plans[0]), Capture(plans[1])};
  Learn(slots, 3);
  for (int i = 0; i < 5; ++i) {
    Learn(slots, 3);
    const uint64_t plan = AddGatherPlan();
    const int slot = Capture(plan);
    Replay(slot);
  }
  Fill();
  for (int gpu : gpus_) {
    v1::Command command;
    command.mutable_remove_plan()->set_plan_id(plans[0]);
    EXPECT_TRUE(node_.Call(gpu, command).ok());
  }
  ExpectNothingGathered();
  Replay(slots[1]);
}

// A first kernel that has been let go and stands behind another program is none of those that are cancelled
// after it.
TEST_F(SpeculativeLaunchTest, CancellingAKernelLeavesTheOneBeforeItAlone) {
  Open();
  constexpr int kGate = 1;
  constexpr uint64_t kOpened = uint64_t{1} << 40;
  std::vector<plan::RankProgram> programs(2);
  for (int rank = 0; rank < 2; ++rank) {
    plan::RankProgram& program = programs[static_cast<size_t>(rank)];
    program.rank = rank;
    program.world_size = 2;
    program.signal_count = kGate + 1;
    plan::Step wait;
    wait.work = plan::WaitStep{static_cast<uint8_t>(1 - rank), kGate};
    program.steps.push_back(wait);
  }
  const auto gate = [&](uint64_t value) {
    for (int rank = 0; rank < 2; ++rank) node_.SignalWord(group_, rank, 1 - rank, kGate)->store(value);
  };
  gate(kOpened);
  const int held = CaptureEntry(Entry(node_.AddPlan(&group_, programs, {})));
  const int first = Capture(AddGatherPlan()), second = Capture(AddGatherPlan());
  const auto replay_held = [&] {
    Ring(held);
    ASSERT_TRUE(Ended(held));
  };
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  for (int round = 0; round < 20 || StillFewer(1, end); ++round) {
    for (int i = 0; i < 5; ++i) {
      replay_held();
      Replay(first);
      Replay(second);
    }
    gate(0);
    Fill();
    const uint64_t before = node_.log().Head();
    Ring(held);
    AwaitStarts(before + 1);
    Ring(first);
    AwaitStarts(before + 2);
    for (int gpu : gpus_) {
      v1::Command ping;  // cancels the kernel that is expected after `first`
      ping.mutable_ping();
      EXPECT_TRUE(node_.Call(gpu, ping).ok());
    }
    ExpectNothingGathered();
    gate(kOpened);
    ASSERT_TRUE(Ended(held));
    ASSERT_TRUE(Ended(first));
    ExpectGathered();
  }
  for (int gpu : gpus_) EXPECT_GE(Cancelled(gpu), 1u) << gpu;
}

TEST_F(SpeculativeLaunchTest, ABreakCancelsTheKernel) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan()), Capture(AddGatherPlan())};
  Learn(slots, 20);
  Fill();
  for (int gpu : gpus_) ASSERT_TRUE(node_.Break(gpu, group_, Code::kUnavailable, "rank 1 has died", 1).ok());
  for (int slot : slots) {
    Ring(slot);
    ASSERT_TRUE(Ended(slot));
    EXPECT_EQ(channels_[0]->producer.CapturedOutcome(slot).status.code(), Code::kUnavailable);
  }
  ExpectNothingGathered();
}

TEST_F(SpeculativeLaunchTest, AnEngineThatEndsLetsItGo) {
  Open();
  Learn({Capture(AddGatherPlan()), Capture(AddGatherPlan())}, 20);
  Fill();
  node_.EndEngine(0);
  ExpectNothingGathered();
}

// Lane 0 whose first kernels stand still at a gate once they have been let go, before they look at their
// guard.
class HeadGate : public WrappedLane {
 public:
  HeadGate(std::unique_ptr<Lane> wrapped, const WrappedBackend& from, const Word* gate)
      : WrappedLane(std::move(wrapped)), from_(from), gate_(gate) {}
  Status WaitWord(const Word* word, uint64_t value) override {
    TANDEM_RETURN_IF_ERROR(WrappedLane::WaitWord(word, value));
    return from_.IsOwnWord(word) ? WrappedLane::WaitWord(gate_, 1) : Status::Ok();
  }

 private:
  const WrappedBackend& from_;
  const Word* gate_;
};

class HeldKernelTest : public SpeculativeLaunchTest {
 protected:
  HeldKernelTest()
      : SpeculativeLaunchTest(
            [this](std::unique_ptr<Backend> backend) { return Gated(std::move(backend)); }) {}
  ~HeldKernelTest() override { Gate(true); }

  std::unique_ptr<Backend> Gated(std::unique_ptr<Backend> backend) {
    return std::make_unique<WrappedBackend>(
        std::move(backend),
        [this](std::unique_ptr<Lane> lane, int index, WrappedBackend& from) -> std::unique_ptr<Lane> {
          if (index != 0) return lane;
          return std::make_unique<HeadGate>(std::move(lane), from, &gate_);
        });
  }
  void Gate(bool open) { gate_.store(open ? 1 : 0, std::memory_order_release); }
  static v1::Command Ping() {
    v1::Command ping;
    ping.mutable_ping();
    return ping;
  }

  Word gate_{1};
};

// Its guard lies in the group's memory, which goes with the group.
TEST_F(HeldKernelTest, AGroupIsThereUntilAKernelThatWasCancelledHasPassed) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan()), Capture(AddGatherPlan())};
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  // Until a command finds a first kernel on the lane, and cancels it.
  for (uint64_t before = Cancelled(0); Cancelled(0) == before;) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "nothing is launched speculatively";
    Gate(true);
    Learn(slots, 3);
    Gate(false);
    before = Cancelled(0);
    ASSERT_TRUE(node_.Call(0, Ping()).ok());
  }
  v1::Command remove;
  remove.mutable_remove_group()->set_group_id(group_.id);
  const auto removal = node_.Send(0, remove);
  ASSERT_TRUE(removal.ok());
  // The engine has answered everything before this command before it answers the next.
  ASSERT_TRUE(node_.Call(0, Ping()).ok());
  const auto ping = node_.Send(0, Ping());
  ASSERT_TRUE(ping.ok());
  v1::Message answer;
  ASSERT_TRUE(node_.Await(
      0,
      [&](const v1::Message& m) {
        return m.has_ack() && (m.ack().id() == *removal || m.ack().id() == *ping);
      },
      &answer));
  EXPECT_EQ(answer.ack().id(), *ping) << "the group was removed before its kernel had passed";
  Gate(true);
  EXPECT_TRUE(node_.Await(0, [&](const v1::Message& m) { return m.has_ack() && m.ack().id() == *removal; }));
}

// Sees whether an event stands between the wait for the go word and the first kernel.
class HeadWatch : public WrappedLane {
 public:
  struct Seen {
    std::atomic<int> kernels{0}, timed{0};
  };
  HeadWatch(std::unique_ptr<Lane> wrapped, const WrappedBackend& from, Seen* seen)
      : WrappedLane(std::move(wrapped)), from_(from), seen_(seen) {}
  Status WaitWord(const Word* word, uint64_t value) override {
    if (from_.IsOwnWord(word)) behind_wait_ = true;
    return WrappedLane::WaitWord(word, value);
  }
  Status Record(Event* event) override {
    if (behind_wait_) ++seen_->timed;
    return WrappedLane::Record(event);
  }
  Status Copy(const CopyArgs& args) override {
    if (std::exchange(behind_wait_, false)) ++seen_->kernels;
    return WrappedLane::Copy(args);
  }

 private:
  const WrappedBackend& from_;
  Seen* seen_;
  bool behind_wait_ = false;
};

class TimedKernelTest : public SpeculativeLaunchTest {
 protected:
  TimedKernelTest()
      : SpeculativeLaunchTest(
            [this](std::unique_ptr<Backend> backend) { return Watched(std::move(backend)); }) {}
  std::unique_ptr<Backend> Watched(std::unique_ptr<Backend> backend) {
    return std::make_unique<WrappedBackend>(
        std::move(backend),
        [this](std::unique_ptr<Lane> lane, int index, WrappedBackend& from) -> std::unique_ptr<Lane> {
          if (index != 0) return lane;
          return std::make_unique<HeadWatch>(std::move(lane), from, &seen_);
        });
  }
  HeadWatch::Seen seen_;
};

// Launches that are timed are launched speculatively like any other: what times them says nothing else of how
// long they take.
TEST_F(TimedKernelTest, AnEventComesBetweenTheGoWordAndTheKernel) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan())};
  const auto end = std::chrono::steady_clock::now() + kWaitBudget;
  while (seen_.timed == 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end)
        << "no launch that is timed is launched speculatively, of " << seen_.kernels;
    Learn(slots, 16);
  }
  do {
    Learn(slots, 200);
  } while (seen_.timed * 8 >= seen_.kernels && std::chrono::steady_clock::now() < end);
  EXPECT_LT(seen_.timed * 8, seen_.kernels);
}

// Two groups on the same GPUs whose launches come in no order: no forecast holds, and all is right.
TEST_F(SpeculativeLaunchTest, AnOrderWithoutARuleIsRight) {
  Open();
  const std::vector<int> slots = {Capture(AddGatherPlan()), Capture(AddGatherPlan()),
                                  Capture(AddGatherPlan())};
  uint32_t random = 7;
  for (int i = 0; i < 300; ++i) {
    random = random * 1664525 + 1013904223;
    Replay(slots[(random >> 20) % slots.size()]);
  }
}

}  // namespace
}  // namespace tandem::engine
