// The fused kernel's order of words and data in a hundred and fifty thousand launches, one after another
// without the host. Data change from launch to launch, words arrive while it runs, and pauses are at random.
// The peers' view is compared on the GPU.
#include "tests/gpu/fused/fused_race_fixture.h"

namespace tandem::cuda {
namespace {

constexpr int kSets = 3;          // of data, in turn: what is one or two launches old is wrong
constexpr int kMany = 12'500;     // launches of each of twelve ways
constexpr int kBatch = 250;       // launches between two looks at the count
constexpr int kDifferences = 30;  // the word that counts them
static_assert(kDifferences > 8 + kBandStep, "a word of the kernel's");

class FusedLongTest : public FusedRaceTest, public testing::WithParamInterface<std::tuple<Delivery, Extent>> {
 protected:
  FusedLongTest() : FusedRaceTest(std::get<0>(GetParam()), std::get<1>(GetParam())) {}

  void SetUp() override {
    FusedRaceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    read_ = std::move(*backend_->MakeEvent());
    for (Stash& stash : stashes_) {
      const Launch launch = Draw(static_cast<uint32_t>(&stash - stashes_.data()) + 1);
      stash = {Take(3 * a_bytes()), Take(b_bytes()), Take(2 * kCBytes), Take(3 * kCBytes)};
      Upload(stash.a, launch.a);
      Upload(stash.b, launch.b);
      Upload(stash.sums, launch.sums);
      for (size_t piece = 0; piece < 3; ++piece)
        Upload(stash.expected + piece * kCBytes, launch.expected[piece]);
    }
  }

  // Enqueues `launches`; how many words of 4 bytes the peers have seen wrong.
  uint64_t CountDifferences(FusedFault fault, int launches) {
    const FusedVariant variant = HookedVariant(fault);
    const uint64_t before = word_value(kDifferences);
    for (int i = 0; i < launches && !HasFatalFailure(); ++i) {
      EnqueueOne(variant, stashes_[static_cast<size_t>(i % kSets)]);
      if (i % kBatch != kBatch - 1) continue;
      for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
      if (word_value(kDifferences) != before) break;
    }
    for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
    return word_value(kDifferences) - before;
  }

 private:
  struct Stash {
    std::byte *a = nullptr, *b = nullptr, *sums = nullptr, *expected = nullptr;
  };

  void EnqueueOne(const FusedVariant& variant, const Stash& stash) {
    // Memory that the last kernel has read may be written anew, and memory that the reader has compared.
    if (launch_number_ > 0) {
      ASSERT_TRUE(peer_->Wait(ended_.get()).ok());
      ASSERT_TRUE(main_->Wait(read_.get()).ok());
    }
    const uint64_t launch_number = ++launch_number_;
    Copy(*main_, stash.a, a_, 3 * a_bytes());
    Copy(*main_, stash.b, b_, b_bytes());
    EnqueueKernel(variant, launch_number);
    EnqueuePeersFrom(stash.a + a_bytes(), stash.sums, launch_number, true);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(reader_->WaitWord(word(3 + i), launch_number).ok());
      if (delivery_ != Delivery::kNone && i < 2) {
        ASSERT_TRUE(reader_->WaitWord(word(3 + i + kBandStep), launch_number).ok());
      }
      const size_t at = static_cast<size_t>(i) * kCBytes;
      ASSERT_TRUE(LaunchCountDifferent(made() + at, stash.expected + at, kCBytes,
                                       reinterpret_cast<uint64_t*>(word(kDifferences)), stream(reader_))
                      .ok());
    }
    ASSERT_TRUE(reader_->Record(read_.get()).ok());
  }

  std::array<Stash, kSets> stashes_;
  std::unique_ptr<Event> read_;
};

INSTANTIATE_TEST_SUITE_P(Ways, FusedLongTest,
                         testing::Combine(testing::Values(Delivery::kNone, Delivery::kCarried,
                                                          Delivery::kDirect, Delivery::kBoth),
                                          testing::Values(Extent{.k = 192}, Extent{.k = 192, .ctas = 3},
                                                          Extent{.k = 640, .ctas = 5, .splits = true})));

TEST_P(FusedLongTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountDifferences(FusedFault::kNone, kMany), 0u); }

TEST_P(FusedLongTest, AFlagBeforeItsDataIsFound) {
  EXPECT_GT(CountDifferences(FusedFault::kFlagBeforeData, kBatch), 0u);
}

TEST_P(FusedLongTest, AMissingWaitIsFound) {
  EXPECT_GT(CountDifferences(FusedFault::kMissingWait, kBatch), 0u);
}

}  // namespace
}  // namespace tandem::cuda
