// The order of the few-rows kernel's words and data: two ranks on one GPU, one of which comes late. Right under random pauses, found
// wrong with each fault that is planted; shards are complete beside a kernel that holds most of the SMs; an end by abort; a launch that
// is called off leaves nothing behind.
#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/native/few_rows_matmul.h"
#include "kernels/cuda/native/native_matmul.h"
#include "tests/gpu/probed_gpu_test.h"

namespace tandem::cuda {
namespace {

constexpr int kRanks = 2, kLaunches = 12, kWordsOfWriter = 512;
constexpr int64_t kRows = 33, kN = 520;  // of each rank's part: a ragged tile each way; ten CTAs a rank

using Matrix = std::vector<float>;

// Small whole numbers: their sums are exact in bf16.
Matrix Draw(int64_t count, std::mt19937& random) {
  Matrix values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 3) - 1;
  return values;
}

// rows × K times the transpose of kN × K, added to `sum`.
void Multiply(const float* a, const Matrix& b, int64_t rows, int64_t k, float* sum) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t i = 0; i < k; ++i) sum[m * kN + n] += a[m * k + i] * b[static_cast<size_t>(n * k + i)];
    }
  }
}

class FewRowsRaceTest : public ProbedGpuTest, public testing::WithParamInterface<FewRowsKind> {
 protected:
  struct Rank {
    std::unique_ptr<Lane> lane;
    std::unique_ptr<Event> ended;
    std::byte *a = nullptr, *b = nullptr, *c = nullptr, *state = nullptr;
    std::array<std::byte*, 2> area{};  // by parity of the epoch
    uint64_t* words = nullptr;         // by writer
    Matrix expected;
  };

  // Ranks of the parameter's kind, of operands of `k` columns.
  void MakeRanks(int64_t k) {
    auto layout = MakeFewRowsLayout(GetParam(), kRanks, kRanks * kRows, kN, k, 2, 2);
    ASSERT_TRUE(layout);
    layout_ = *layout;
    for (Rank& rank : ranks_) {
      rank.lane = std::move(*backend_->MakeLane(0));
      rank.ended = std::move(*backend_->MakeEvent());
      rank.a = Take(kRanks * kRows * k * 2);
      rank.b = Take(kN * k * 2);
      rank.c = Take(kRanks * kRows * kN * 2);
      rank.state = Take(kFusedStateBytes);
      for (std::byte*& area : rank.area) area = Take(layout_.area_bytes());
      rank.words = reinterpret_cast<uint64_t*>(Take(kRanks * kWordsOfWriter * 8));
    }
    guard_ = reinterpret_cast<uint64_t*>(Take(sizeof(uint64_t)));
  }
  bool EndsWithin(const Rank& rank, std::chrono::milliseconds time) { return ProbedGpuTest::EndsWithin(*rank.ended, time); }
  bool IsRight(const Rank& rank) {
    std::vector<std::byte> bytes(rank.expected.size() * 2);
    Move(bytes.data(), rank.c, bytes.size());
    for (size_t i = 0; i < rank.expected.size(); ++i) {
      if (LoadAsFloat(bytes.data(), DType::kBf16, i) != rank.expected[i]) return false;
    }
    return true;
  }

  // New operands for both ranks, and what becomes of them.
  void UploadOperands(uint32_t seed) {
    std::mt19937 random(seed);
    const int64_t k = layout_.k;
    const bool gathers = GetParam() == FewRowsKind::kGather;
    std::vector<Matrix> a, b;
    for (Rank& rank : ranks_) {
      a.push_back(Draw((gathers ? 1 : kRanks) * kRows * k, random));
      b.push_back(Draw(kN * k, random));
      Upload(rank.a, a.back());
      Upload(rank.b, b.back());
    }
    Matrix sum(kRanks * kRows * kN);
    for (size_t r = 0; r < kRanks; ++r) {
      if (gathers) {
        ranks_[r].expected.assign(kRanks * kRows * kN, 0);
        for (size_t s = 0; s < kRanks; ++s) Multiply(a[s].data(), b[r], kRows, k, &ranks_[r].expected[s * kRows * kN]);
      } else {
        Multiply(a[r].data(), b[r], kRanks * kRows, k, sum.data());
      }
    }
    for (size_t r = 0; r < kRanks && !gathers; ++r) {
      ranks_[r].expected = sum;
      if (GetParam() == FewRowsKind::kScatter) {
        ranks_[r].expected.assign(sum.begin() + static_cast<int64_t>(r) * kRows * kN, sum.begin() + static_cast<int64_t>(r + 1) * kRows * kN);
      }
    }
  }
  FewRowsMatmul MatmulOf(int r, uint64_t epoch) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    FewRowsMatmul matmul;
    matmul.layout = layout_;
    matmul.b_along_n = false;
    matmul.rank = r;
    matmul.a = rank.a;
    matmul.b = rank.b;
    matmul.c = rank.c;
    matmul.a_pitch = matmul.b_pitch = layout_.k;
    matmul.c_pitch = kN;
    for (size_t peer = 0; peer < kRanks; ++peer) {
      matmul.area[peer] = ranks_[peer].area[epoch & 1];
      matmul.words[peer] = ranks_[peer].words + r * kWordsOfWriter;
      matmul.arrived[peer] = rank.words + peer * kWordsOfWriter;
    }
    matmul.epoch = epoch;
    matmul.abort_word = reinterpret_cast<const uint64_t*>(const_cast<uint32_t*>(HostWord(2)));
    matmul.state = rank.state;
    return matmul;
  }
  void Enqueue(int r, uint64_t epoch, NativeFault fault, uint64_t timeout_ns = 20'000'000'000, bool guarded = false) {
    FewRowsMatmul matmul = MatmulOf(r, epoch);
    matmul.timeout_ns = timeout_ns;
    if (guarded) {
      matmul.guard_word = guard_;
      matmul.guard_value = epoch;
    }
    Rank& rank = ranks_[static_cast<size_t>(r)];
    ASSERT_TRUE(backend_->MakeEvent().ok());
    auto params = MakeFewRowsParams(matmul);
    ASSERT_TRUE(params.ok()) << params.status().ToString();
    if (epoch % 2 == 1) {  // shards so short are pushed at the start; these in turn, as long ones are
      params->first_units = 1;
      params->cycles_per_unit = 3000;
    }
    const FewRowsVariant variant = ProbedFewRows(fault);
    ASSERT_EQ(variant.tile_n, layout_.tile_n);
    ASSERT_TRUE(LaunchFewRows(*params, variant, layout_.ctas(), stream(rank.lane)).ok());
    ASSERT_TRUE(rank.lane->Record(rank.ended.get()).ok());
  }
  // Launches with data of their own, of which each rank comes late in turn: the results that were wrong in all.
  int CountWrong(NativeFault fault) {
    MakeRanks(512);
    int wrong = 0;
    for (int i = 0; i < kLaunches && !HasFatalFailure(); ++i) {
      UploadOperands(static_cast<uint32_t>(i) + 1);
      const int first = i & 1;
      ++epoch_;
      Enqueue(first, epoch_, fault);
      const bool early = EndsWithin(ranks_[static_cast<size_t>(first)], std::chrono::milliseconds(i % 4 == 0 ? 20 : 2));
      EXPECT_FALSE(early && fault == NativeFault::kNone) << "launch " << i << " ended before its peer came";
      Enqueue(1 - first, epoch_, fault);
      for (Rank& rank : ranks_) Sync(rank.lane);
      for (Rank& rank : ranks_) wrong += IsRight(rank) ? 0 : 1;
    }
    return wrong;
  }

  // Of a gather, on few SMs; the peer announces one `part`-th of its shard at once (0: nothing), and the rest when it has all of ours.
  void MeetASlowPeer(size_t part) {
    if (GetParam() != FewRowsKind::kGather) GTEST_SKIP() << "sums are sent tile by tile";
    MakeRanks(2048);
    UploadOperands(77);
    const int squatters = SmCount() - 8;  // four clusters
    auto* holding = const_cast<uint32_t*>(HostWord(0));
    ASSERT_TRUE(LaunchSquatter(squatters, holding, const_cast<uint32_t*>(HostWord(1)), stream(squatter_)).ok());
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (*HostWord(0) < static_cast<uint32_t>(squatters) && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_EQ(*HostWord(0), static_cast<uint32_t>(squatters));
    // The peer, played by this thread.
    ++epoch_;
    const auto units = static_cast<size_t>(layout_.units());
    ASSERT_GT(units, 10u);
    const size_t shard = static_cast<size_t>(kRows * layout_.k) * 2;
    std::vector<std::byte> pushed(shard), own(shard);
    Move(own.data(), ranks_[1].a, shard);
    Move(ranks_[0].area[epoch_ & 1] + layout_.slot_bytes(), own.data(), shard);
    std::vector<uint64_t> words(units, epoch_);
    if (part > 0) Move(ranks_[0].words + kWordsOfWriter, words.data(), units / part * 8);
    Enqueue(0, epoch_, NativeFault::kNone);
    const auto all_pushed = [&] {
      Move(words.data(), ranks_[1].words, units * 8);
      return std::all_of(words.begin(), words.end(), [&](uint64_t word) { return word == epoch_; });
    };
    while (!all_pushed() && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(all_pushed());
    Move(pushed.data(), ranks_[1].area[epoch_ & 1], shard);
    Move(own.data(), ranks_[0].a, shard);
    EXPECT_EQ(pushed, own);
    Move(ranks_[0].words + kWordsOfWriter, words.data(), units * 8);
    EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(20))) << "no progress";
    *HostWord(1) = 1;
    Sync(ranks_[0].lane);
    EXPECT_TRUE(IsRight(ranks_[0]));
  }

  FewRowsLayout layout_;
  std::array<Rank, kRanks> ranks_;
  uint64_t* guard_ = nullptr;
  uint64_t epoch_ = 0;
};

TEST_P(FewRowsRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(NativeFault::kNone), 0); }

TEST_P(FewRowsRaceTest, AFlagBeforeItsDataIsFound) { EXPECT_GT(CountWrong(NativeFault::kFlagBeforeData), 0); }

TEST_P(FewRowsRaceTest, AMissingWaitIsFound) { EXPECT_GT(CountWrong(NativeFault::kMissingWait), 0); }

TEST_P(FewRowsRaceTest, AStaleEpochIsFound) { EXPECT_GT(CountWrong(NativeFault::kStaleEpoch), 0); }

// Not all of ten CTAs have room: those that run push what the others should, for the peer does not announce its shard before it has ours.
TEST_P(FewRowsRaceTest, MakesProgressBesideAKernelThatHoldsNearlyAllSms) { MeetASlowPeer(0); }

// The same when the tiles have begun already.
TEST_P(FewRowsRaceTest, MakesProgressWithHalfOfTheColumnsBesideAKernelThatHoldsNearlyAllSms) { MeetASlowPeer(2); }

TEST_P(FewRowsRaceTest, AbortEndsItAndTheNextLaunchIsRight) {
  MakeRanks(512);
  UploadOperands(99);
  Enqueue(0, ++epoch_, NativeFault::kNone);
  EXPECT_FALSE(EndsWithin(ranks_[0], std::chrono::milliseconds(20)));
  auto* abort = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(2)));
  abort->store(1, std::memory_order_release);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1)));
  abort->store(0, std::memory_order_release);
  // Without an abort the wait's own bound ends it.
  Enqueue(0, ++epoch_, NativeFault::kNone, 50'000'000);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1)));
  ++epoch_;
  for (int rank = 0; rank < kRanks; ++rank) Enqueue(rank, epoch_, NativeFault::kNone);
  for (Rank& rank : ranks_) Sync(rank.lane);
  for (Rank& rank : ranks_) EXPECT_TRUE(IsRight(rank));
}

// As an engine calls off what it has enqueued ahead: the kernel stands behind a wait when its guard is raised. What came before has
// left its words, stamps and outputs.
TEST_P(FewRowsRaceTest, CalledOffItLeavesNoTraceAndTheSameEpochIsRight) {
  MakeRanks(512);
  const auto everything = [&] {
    std::vector<std::byte> bytes(static_cast<size_t>(next_ - segment_->data()));
    Move(bytes.data(), segment_->data(), bytes.size());
    return bytes;
  };
  const auto both = [&](bool guarded) {
    for (int rank = 0; rank < kRanks; ++rank) Enqueue(rank, epoch_, NativeFault::kNone, 20'000'000'000, guarded);
    for (Rank& rank : ranks_) Sync(rank.lane);
    for (Rank& rank : ranks_) EXPECT_TRUE(IsRight(rank)) << "epoch " << epoch_;
  };
  UploadOperands(5);
  ++epoch_;
  both(false);
  UploadOperands(6);
  ++epoch_;
  std::vector<std::byte> expected = everything();
  auto* gate = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(3)));
  ASSERT_TRUE(ranks_[0].lane->WaitWord(gate, epoch_).ok());
  Enqueue(0, epoch_, NativeFault::kNone, 20'000'000'000, true);
  EXPECT_FALSE(EndsWithin(ranks_[0], std::chrono::milliseconds(5)));
  ASSERT_TRUE(backend_->StoreWord(reinterpret_cast<Word*>(guard_), epoch_).ok());
  gate->store(epoch_, std::memory_order_release);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1))) << "though its peer does not come";
  Sync(ranks_[0].lane);
  std::memcpy(expected.data() + (reinterpret_cast<std::byte*>(guard_) - segment_->data()), &epoch_, sizeof(epoch_));
  EXPECT_TRUE(everything() == expected);
  both(false);
  // A guard that has reached the last epoch only is as none.
  UploadOperands(7);
  ++epoch_;
  both(true);
}

std::string NameOf(const testing::TestParamInfo<FewRowsKind>& kind) {
  constexpr const char* kNames[] = {"Gather", "Scatter", "AllReduce"};
  return kNames[static_cast<size_t>(kind.param)];
}
INSTANTIATE_TEST_SUITE_P(Kinds, FewRowsRaceTest, testing::Values(FewRowsKind::kGather, FewRowsKind::kScatter, FewRowsKind::kAllReduce), NameOf);

}  // namespace
}  // namespace tandem::cuda
