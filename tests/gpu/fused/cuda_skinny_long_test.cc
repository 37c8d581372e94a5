// The skinny kernel's order of words and data in tens of thousands of launches, one after another without the
// host. Two ranks share one GPU, pauses are at random, and data change from launch to launch. Results are
// compared on the GPU.
#include "tests/gpu/fused/skinny_race_fixture.h"

namespace tandem::cuda {
namespace {

constexpr int kSets = 3;       // of data, in turn: what is one or two launches old is wrong
constexpr int kMany = 17'000;  // launches of both ranks, of each kind
constexpr int kBatch = 250;    // launches between two looks at the count

class SkinnyLongTest : public SkinnyRaceTest {
 protected:
  void SetUp() override {
    SkinnyRaceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    MakeRanks(512);
    differences_ = reinterpret_cast<uint64_t*>(Take(sizeof(uint64_t)));
    for (uint32_t set = 0; set < kSets; ++set) {
      const Operands drawn = DrawOperands(set + 1);
      for (size_t r = 0; r < kRanks; ++r) {
        const auto stash = [this](const Matrix& values) {
          Stashed stashed{Take(values.size() * 2), static_cast<int64_t>(values.size())};
          Upload(stashed.at, values);
          return stashed;
        };
        stashes_[set][r] = {stash(drawn.a[r]), stash(drawn.b[r]), stash(drawn.expected[r])};
      }
    }
  }

  // Enqueues `launches`; how many words of 4 bytes are not as they should be.
  uint64_t CountDifferences(FusedFault fault, int launches) {
    const uint64_t before = differences();
    for (int i = 0; i < launches && !HasFatalFailure(); ++i) {
      ++launch_number_;
      // Each comes first in turn.
      for (const int rank : {i & 1, 1 - (i & 1)})
        EnqueueOne(rank, fault, stashes_[static_cast<size_t>(i % kSets)]);
      if (i % kBatch != kBatch - 1) continue;
      for (Rank& rank : ranks_) Sync(rank.lane);
      if (differences() != before) break;
    }
    for (Rank& rank : ranks_) Sync(rank.lane);
    return differences() - before;
  }

 private:
  struct Stashed {
    std::byte* at = nullptr;
    int64_t count = 0;
  };
  struct Stash {
    Stashed a, b, expected;
  };

  void EnqueueOne(int r, FusedFault fault, const std::array<Stash, kRanks>& stash) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const Stash& own = stash[static_cast<size_t>(r)];
    const auto fill = [&rank](const Stashed& from, std::byte* to) {
      const CopyArgs copy{
          {{from.at, DType::kBf16, {from.count}, {1}}, {to, DType::kBf16, {from.count}, {1}}}};
      ASSERT_TRUE(rank.lane->Copy(copy).ok());
    };
    fill(own.a, rank.a);
    fill(own.b, rank.b);
    Enqueue(r, launch_number_, fault);
    ASSERT_TRUE(LaunchCountDifferent(rank.c, own.expected.at, static_cast<size_t>(own.expected.count) * 2,
                                     differences_, stream(rank.lane))
                    .ok());
  }
  uint64_t differences() {
    uint64_t value = 0;
    Move(&value, differences_, sizeof(value));
    return value;
  }

  std::array<std::array<Stash, kRanks>, kSets> stashes_;
  uint64_t* differences_ = nullptr;
};

TEST_P(SkinnyLongTest, IsRightUnderRandomPauses) {
  EXPECT_EQ(CountDifferences(FusedFault::kNone, kMany), 0u);
}

TEST_P(SkinnyLongTest, AFlagBeforeItsDataIsFound) {
  EXPECT_GT(CountDifferences(FusedFault::kFlagBeforeData, kBatch), 0u);
}

TEST_P(SkinnyLongTest, AMissingWaitIsFound) {
  EXPECT_GT(CountDifferences(FusedFault::kMissingWait, kBatch), 0u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SkinnyLongTest, testing::ValuesIn(kForms), FormName);

}  // namespace
}  // namespace tandem::cuda
