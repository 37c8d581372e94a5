// The choice between lane 0's two streams: when the other one is tried, and when it is kept.
#include "engine/launch/stream_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace tandem::engine {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class StreamChoiceTest : public testing::Test {
 protected:
  // `count` launches, whose turns are `turn_of(stream)`, 100 µs apart; the lane switches behind each as is
  // wanted.
  void Run(int count, const std::function<uint64_t(int stream)>& turn_of) {
    for (int i = 0; i < count; ++i) {
      now_ += 100'000;
      choice_.Turn(plan_, turn_of(choice_.current()), now_);
      if (!switches_ || !choice_.WantsSwitch()) continue;
      choice_.Switched();
      changes_.push_back(now_);
    }
  }
  void Run(int count, uint64_t first, uint64_t second) {
    Run(count, [&](int stream) { return stream == 0 ? first : second; });
  }
  static constexpr int kFirst = static_cast<int>(StreamChoice::kFirstTurns),
                       kTrial = static_cast<int>(StreamChoice::kTrialTurns);

  StreamChoice choice_;
  uint64_t plan_ = 7;  // whose turns they are
  uint64_t now_ = 5 * kSecond;
  bool switches_ = true;
  std::vector<uint64_t> changes_;  // when the lane switched
};

TEST_F(StreamChoiceTest, TriesTheOtherAfterTheFirstTurns) {
  Run(kFirst - 1, 8000, 8000);
  EXPECT_EQ(choice_.wanted(), 0);
  Run(1, 8000, 8000);
  EXPECT_EQ(choice_.current(), 1);
}

TEST_F(StreamChoiceTest, KeepsTheOneWithTheShorterTurns) {
  Run(kFirst, 8000, 5500);
  Run(kTrial, 8000, 5500);
  EXPECT_EQ(choice_.current(), 1);
  Run(5000, 8000, 5500);
  EXPECT_EQ(choice_.current(), 1);
}

TEST_F(StreamChoiceTest, GoesBackIfTheOtherIsNoBetter) {
  for (uint64_t other : {10'500u, 8000u}) {
    choice_ = {};
    Run(kFirst, 8000, other);
    EXPECT_EQ(choice_.current(), 1) << other;
    Run(kTrial - 1, 8000, other);
    EXPECT_EQ(choice_.current(), 1) << other;
    Run(1, 8000, other);
    EXPECT_EQ(choice_.current(), 0) << other;
  }
}

TEST_F(StreamChoiceTest, ADifferenceBelowTheMarginChangesNothing) {
  Run(kFirst + kTrial, 8000, 8000 - TurnLimits{}.margin_ns);
  EXPECT_EQ(choice_.current(), 0);
  choice_ = {};
  Run(kFirst + kTrial, 8000, 8000 - TurnLimits{}.margin_ns - 1);
  EXPECT_EQ(choice_.current(), 1);
}

TEST_F(StreamChoiceTest, NoiseAroundAnEqualMiddleChangesNothing) {
  uint32_t random = 3;
  const auto turn = [&](int) {
    random = random * 1664525 + 1013904223;
    // One in five is late by much; the others differ by up to 0.4 µs.
    return 8000 + (random >> 24) % 200 * 2 + ((random >> 16) % 5 == 0 ? 20'000 : 0);
  };
  Run(400'000, turn);
  EXPECT_EQ(changes_.size() % 2, 0u) << "every trial was taken back";
  EXPECT_GE(changes_.size(), 6u);
  EXPECT_EQ(choice_.current(), 0);
}

TEST_F(StreamChoiceTest, LongTurnsCountForNothing) {
  Run(1000, TurnLimits{}.longest_ns + 1, 100);
  EXPECT_EQ(choice_.wanted(), 0);
  // Nor between others, in a trial or out of it.
  int turns = 0;
  Run(2 * kFirst + 2 * kTrial, [&](int stream) {
    return ++turns % 2 == 0 ? 200'000u : stream == 0 ? 8000u : 5000u;
  });
  EXPECT_EQ(choice_.current(), 1);
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(StreamChoiceTest, TrialsBecomeRareWhileTheyChangeNothing) {
  Run(1'500'000, 8000, 8000);  // 150 s
  std::vector<uint64_t> gaps;  // between the begins of trials
  for (size_t i = 2; i + 1 < changes_.size(); i += 2) gaps.push_back(changes_[i] - changes_[i - 2]);
  ASSERT_GE(gaps.size(), 7u);
  const uint64_t trial = 3'000'000;  // what a trial takes, and more
  uint64_t expected = kSecond;
  for (uint64_t gap : gaps) {
    EXPECT_GE(gap, expected);
    EXPECT_LE(gap, expected + trial);
    expected = std::min(2 * expected, StreamChoice::kLongestIntervalNs);
  }
  EXPECT_EQ(expected, StreamChoice::kLongestIntervalNs);
}

TEST_F(StreamChoiceTest, ALaunchersChangeIsFoundOut) {
  Run(20'000, 8000, 5500);
  EXPECT_EQ(choice_.current(), 1);
  // The client's stream is another one now: what was learnt is wrong until the next trial.
  Run(310'000, 5500, 8000);
  EXPECT_EQ(choice_.current(), 0);
}

TEST_F(StreamChoiceTest, ALaneThatNeverStandsStillStaysWhereItIs) {
  switches_ = false;
  Run(kFirst, 8000, 5500);
  EXPECT_TRUE(choice_.WantsSwitch());
  Run(StreamChoice::kWaitBudgetTurns, 8000, 5500);
  EXPECT_FALSE(choice_.WantsSwitch());
  EXPECT_EQ(choice_.current(), 0);
  Run(9'000, 8000, 5500);
  EXPECT_FALSE(choice_.WantsSwitch()) << "not before the interval";
  switches_ = true;
  Run(1'200, 8000, 5500);
  EXPECT_EQ(choice_.current(), 1) << "and then it is tried";
}

// Turns behind another plan are shorter on the worse stream than the first plan's on the better one.
TEST_F(StreamChoiceTest, PlansAreNotComparedWithEachOther) {
  const auto both = [&](int count, uint64_t first, uint64_t second) {
    for (int i = 0; i < count; ++i) {
      plan_ = 7;
      Run(1, first, second);
      plan_ = 8;
      Run(3, first / 2, second / 2);
    }
  };
  both(kFirst, 8000, 10'500);
  ASSERT_EQ(choice_.current(), 1);
  plan_ = 8;
  Run(kTrial, 4000, 5250);
  EXPECT_EQ(choice_.current(), 1) << "still on trial";
  both(kTrial, 8000, 10'500);
  EXPECT_EQ(choice_.current(), 0);
}

TEST_F(StreamChoiceTest, APlanThatIsGoneIsNotWaitedFor) {
  Run(kFirst - 1, 8000, 5500);
  plan_ = 8;
  Run(StreamChoice::kMaxStrangers + kFirst, 8000, 5500);
  ASSERT_EQ(choice_.current(), 1);
  // In a trial: back, and the next one is by what is launched now.
  plan_ = 9;
  Run(StreamChoice::kMaxStrangers, 8000, 5500);
  EXPECT_EQ(choice_.current(), 0);
  Run(12'000, 8000, 5500);
  EXPECT_EQ(choice_.current(), 1);
}

// A trial that cannot be taken back is looked at again soon.
TEST_F(StreamChoiceTest, AWorseStreamIsLeftOnceTheLaneStandsStill) {
  Run(kFirst, 5500, 8000);
  ASSERT_EQ(choice_.current(), 1);
  switches_ = false;
  Run(kTrial + StreamChoice::kWaitBudgetTurns, 5500, 8000);
  EXPECT_EQ(choice_.current(), 1);
  EXPECT_FALSE(choice_.WantsSwitch());
  switches_ = true;
  Run(10'100, 5500, 8000);
  EXPECT_EQ(choice_.current(), 0);
}

}  // namespace
}  // namespace tandem::engine
