// Lane 0 on one of two streams: it changes only while it holds nothing, and nothing else changes with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/launch/stream_choice.h"
#include "engine/tests/gather_fixture.h"
#include "engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

// The test's view of a lane of two streams.
struct Streams {
  std::atomic<int> current{0};
  std::atomic<int> changes{0};
  std::atomic<int> refused{0};  // changes that came while work was unfinished
};

// Two lanes of the host backend as one lane's streams.
class DualStreamLane : public WrappedLane {
 public:
  DualStreamLane(std::unique_ptr<Lane> first, std::unique_ptr<Lane> second, Streams* streams)
      : WrappedLane(std::move(first)), second_(std::move(second)), streams_(streams) {}
  int stream_count() const override { return 2; }
  Status UseStream(int index) override {
    // Work behind everything on the stream is there at once, unless that is unfinished.
    TANDEM_RETURN_IF_ERROR(lane().WriteWord(&behind_, ++marks_));
    const auto end = Clock::now() + std::chrono::minutes(1);
    while (behind_.load() != marks_ && Clock::now() < end) std::this_thread::yield();
    if (behind_.load() != marks_) ++streams_->refused;
    streams_->current = index;
    ++streams_->changes;
    return Status::Ok();
  }

 protected:
  Lane& lane() override { return streams_->current == 0 ? WrappedLane::lane() : *second_; }

 private:
  std::unique_ptr<Lane> second_;
  Streams* streams_;
  Word behind_{0};
  uint64_t marks_ = 0;
};

// Turns of milliseconds: a client that sleeps leaves its core to the engine, which then sees every end when
// it comes, whatever else the machine does. It may see the end of a launch and the next arrival at once
// behind one that spins for microseconds.
constexpr TurnLimits kLimits{.longest_ns = 20'000'000, .margin_ns = 1'000'000};
constexpr std::chrono::milliseconds kLongTurn{4}, kOtherWork{25};

// One rank, whose launches gather what is there.
class StreamsTest : public GatherTest {
 protected:
  StreamsTest()
      : GatherTest(
            1, 32, [this](std::unique_ptr<Backend> backend) { return DualStream(std::move(backend)); },
            kLimits) {}

  std::unique_ptr<Backend> DualStream(std::unique_ptr<Backend> backend) {
    return std::make_unique<WrappedBackend>(
        std::move(backend),
        [this](std::unique_ptr<Lane> lane, int index, WrappedBackend& from) -> std::unique_ptr<Lane> {
          if (index != 0) return lane;
          return std::make_unique<DualStreamLane>(std::move(lane), std::move(*from.backend().MakeLane(0)),
                                                  &streams_);
        });
  }

  // Launches of `plans` in turn by one channel, the next one pushed while one runs so that its first kernel
  // can go ahead. The client takes `turn_of(stream)` to come back after each. Until `enough`; false if that
  // takes too long or a launch goes wrong.
  bool LaunchUntil(const std::vector<uint64_t>& plans,
                   const std::function<std::chrono::milliseconds(int stream)>& turn_of,
                   const std::function<bool()>& enough) {
    TestChannel& channel = *channels_[0];
    const auto end = Clock::now() + std::chrono::minutes(2);
    uint64_t next = channel.Push(Gather(plans[0]));
    for (size_t launched = 1; !enough(); ++launched) {
      const uint64_t sequence = next;
      next = channel.Push(Gather(plans[launched % plans.size()]));
      std::fill_n(Data(0), kGathered, ++value_);
      std::fill_n(Data(0) + kGathered, kGathered, -1.0f);
      channel.Reach(sequence);
      if (!channel.Wait(sequence) || !channel.producer.Outcome(sequence).status.ok()) return false;
      const float* gathered = Data(0) + kGathered;
      if (std::count(gathered, gathered + kGathered, value_) != kGathered) return false;
      ++launches_;
      std::this_thread::sleep_for(turn_of(streams_.current));
      if (Clock::now() > end) return false;
    }
    channel.Reach(next);
    return channel.Wait(next);
  }

  Streams streams_;
  float value_ = 0;
  int launches_ = 0;
};

TEST_F(StreamsTest, TheOneWithTheShorterTurnsIsUsed) {
  Open();
  const std::vector<uint64_t> plans = {AddGatherPlan(), AddGatherPlan()};
  // Longer than any trial, so that the choice has been made.
  int on_second = 0;
  EXPECT_TRUE(LaunchUntil(
      plans, [](int stream) { return kLongTurn * (stream == 0); },
      [&] {
        on_second = streams_.current == 1 ? on_second + 1 : 0;
        return on_second >= 1000;
      }))
      << launches_ << " launches, " << streams_.changes << " changes";
  EXPECT_EQ(streams_.current, 1);
  EXPECT_EQ(streams_.refused, 0) << "it changed while its lane held work";
  EXPECT_GT(node_.stats(0).Speculated(), 0u);
}

TEST_F(StreamsTest, AStreamThatIsNoBetterIsLeftAgain) {
  Open();
  const std::vector<uint64_t> plans = {AddGatherPlan(), AddGatherPlan()};
  EXPECT_TRUE(LaunchUntil(
      plans, [](int stream) { return kLongTurn * (stream == 1); },
      [&] { return streams_.changes >= 2 && streams_.current == 0; }))
      << launches_ << " launches, " << streams_.changes << " changes";
  EXPECT_EQ(streams_.refused, 0);
}

TEST_F(StreamsTest, TurnsOfAClientThatDoesOtherWorkChangeNothing) {
  Open();
  const std::vector<uint64_t> plans = {AddGatherPlan(), AddGatherPlan()};
  EXPECT_TRUE(LaunchUntil(
      plans, [](int) { return kOtherWork; },
      [&] { return launches_ >= 4 * static_cast<int>(StreamChoice::kFirstTurns); }));
  EXPECT_EQ(streams_.changes, 0);
}

}  // namespace
}  // namespace tandem::engine
