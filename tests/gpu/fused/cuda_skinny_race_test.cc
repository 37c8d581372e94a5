// The order of the skinny kernel's words and data: two ranks on one GPU, one of which comes late. Right
// under random pauses, found wrong with each fault that is planted; shards are complete beside a kernel that
// holds most of the SMs; an end by abort; a launch that is cancelled leaves nothing behind.
#include <algorithm>
#include <thread>

#include "tests/gpu/fused/skinny_race_fixture.h"

namespace tandem::cuda {
namespace {

// Beside a kernel that holds nearly all SMs.
class SkinnySquatterTest : public SkinnyRaceTest {
 protected:
  static constexpr int kLeft = 8;  // SMs: four clusters

  // Holds all SMs but `left`.
  void Squat(int left) {
    const auto squatters = static_cast<uint32_t>(SmCount() - left);
    auto* holding = const_cast<uint32_t*>(HostWord(0));
    ASSERT_TRUE(LaunchSquatter(static_cast<int>(squatters), holding, const_cast<uint32_t*>(HostWord(1)),
                               stream(squatter_))
                    .ok());
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (*HostWord(0) < squatters && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_EQ(*HostWord(0), squatters);
  }

  // Sums on few SMs: the peer has room for all CTAs, and was first.
  void SumOnFewSms() {
    MakeRanks(512);
    ASSERT_GT(layout_.ctas(), kLeft) << "there is room for all CTAs";
    for (int late = 0; late < kRanks && !HasFatalFailure(); ++late) {
      UploadOperands(70 + static_cast<uint32_t>(late));
      ++launch_number_;
      *HostWord(0) = 0;
      *HostWord(1) = 0;
      Enqueue(1 - late, launch_number_, FusedFault::kNone);
      EXPECT_FALSE(EndsWithin(ranks_[static_cast<size_t>(1 - late)], std::chrono::milliseconds(20)));
      Squat(layout_.ctas() + kLeft);  // the peer's CTAs are there already
      Enqueue(late, launch_number_, FusedFault::kNone);
      for (const Rank& rank : ranks_)
        EXPECT_TRUE(EndsWithin(rank, std::chrono::seconds(10))) << "no progress, late " << late;
      *HostWord(1) = 1;
      for (Rank& rank : ranks_) Sync(rank.lane);
      Sync(squatter_);
      for (const Rank& rank : ranks_) EXPECT_TRUE(IsRight(rank));
    }
  }

  // A gather on few SMs. The peer announces one `part`-th of the shard at once (0: nothing), and the rest
  // when it has all of ours.
  void GatherOnFewSms(size_t part) {
    MakeRanks(2048);
    UploadOperands(77);
    Squat(kLeft);
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    // The peer, played by this thread.
    ++launch_number_;
    const auto units = static_cast<size_t>(layout_.units());
    ASSERT_GT(units, 10u);
    const size_t shard = static_cast<size_t>(kRows * layout_.k) * 2;
    std::vector<std::byte> pushed(shard), own(shard);
    Move(own.data(), ranks_[1].a, shard);
    Move(ranks_[0].area[launch_number_ & 1] + layout_.slot_bytes(), own.data(), shard);
    std::vector<uint64_t> words(units, launch_number_);
    if (part > 0) Move(ranks_[0].words + kWordsOfWriter, words.data(), units / part * 8);
    Enqueue(0, launch_number_, FusedFault::kNone);
    const auto all_pushed = [&] {
      Move(words.data(), ranks_[1].words, units * 8);
      return std::all_of(words.begin(), words.end(), [&](uint64_t word) { return word == launch_number_; });
    };
    while (!all_pushed() && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(all_pushed());
    Move(pushed.data(), ranks_[1].area[launch_number_ & 1], shard);
    Move(own.data(), ranks_[0].a, shard);
    EXPECT_EQ(pushed, own);
    Move(ranks_[0].words + kWordsOfWriter, words.data(), units * 8);
    EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(20))) << "no progress";
    *HostWord(1) = 1;
    Sync(ranks_[0].lane);
    EXPECT_TRUE(IsRight(ranks_[0]));
  }
};

TEST_P(SkinnyRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(FusedFault::kNone), 0); }

TEST_P(SkinnyRaceTest, AFlagBeforeItsDataIsFound) { EXPECT_GT(CountWrong(FusedFault::kFlagBeforeData), 0); }

TEST_P(SkinnyRaceTest, AMissingWaitIsFound) { EXPECT_GT(CountWrong(FusedFault::kMissingWait), 0); }

TEST_P(SkinnyRaceTest, AStaleLaunchNumberIsFound) {
  EXPECT_GT(CountWrong(FusedFault::kStaleLaunchNumber), 0);
}

// Not all of ten CTAs have room: those that run push what the others should, for the peer does not announce
// its shard before it has ours.
TEST_P(SkinnySquatterTest, MakesProgress) {
  if (GetParam().kind == SkinnyKind::kGather) {
    GatherOnFewSms(0);
  } else {
    SumOnFewSms();
  }
}

// The same when the tiles have begun already. Sums are sent tile by tile, and have no such state.
using SkinnyGatherSquatterTest = SkinnySquatterTest;
TEST_P(SkinnyGatherSquatterTest, MakesProgressWithHalfOfTheColumns) { GatherOnFewSms(2); }

TEST_P(SkinnyRaceTest, AbortEndsItAndTheNextLaunchIsRight) {
  MakeRanks(512);
  UploadOperands(99);
  Enqueue(0, ++launch_number_, FusedFault::kNone);
  EXPECT_FALSE(EndsWithin(ranks_[0], std::chrono::milliseconds(20)));
  auto* abort = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(2)));
  abort->store(1, std::memory_order_release);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1)));
  abort->store(0, std::memory_order_release);
  // Without an abort the wait's own bound ends it.
  Enqueue(0, ++launch_number_, FusedFault::kNone, 50'000'000);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1)));
  ++launch_number_;
  for (int rank = 0; rank < kRanks; ++rank) Enqueue(rank, launch_number_, FusedFault::kNone);
  for (Rank& rank : ranks_) Sync(rank.lane);
  for (Rank& rank : ranks_) EXPECT_TRUE(IsRight(rank));
}

// As an engine cancels what it has enqueued ahead: the kernel stands behind a wait when its guard is
// raised. The launch before has left its words, stamps and outputs.
TEST_P(SkinnyRaceTest, ACancelledKernelLeavesNoTraceAndTheSameLaunchNumberIsRight) {
  MakeRanks(512);
  const auto everything = [&] {
    std::vector<std::byte> bytes(static_cast<size_t>(next_ - segment_->data()));
    Move(bytes.data(), segment_->data(), bytes.size());
    return bytes;
  };
  const auto both = [&](bool guarded) {
    for (int rank = 0; rank < kRanks; ++rank)
      Enqueue(rank, launch_number_, FusedFault::kNone, 20'000'000'000, guarded);
    for (Rank& rank : ranks_) Sync(rank.lane);
    for (Rank& rank : ranks_) EXPECT_TRUE(IsRight(rank)) << "launch number " << launch_number_;
  };
  UploadOperands(5);
  ++launch_number_;
  both(false);
  UploadOperands(6);
  ++launch_number_;
  std::vector<std::byte> expected = everything();
  auto* gate = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(3)));
  ASSERT_TRUE(ranks_[0].lane->WaitWord(gate, launch_number_).ok());
  Enqueue(0, launch_number_, FusedFault::kNone, 20'000'000'000, true);
  EXPECT_FALSE(EndsWithin(ranks_[0], std::chrono::milliseconds(5)));
  ASSERT_TRUE(backend_->StoreWord(reinterpret_cast<Word*>(guard_), launch_number_).ok());
  gate->store(launch_number_, std::memory_order_release);
  EXPECT_TRUE(EndsWithin(ranks_[0], std::chrono::seconds(1))) << "though its peer does not come";
  Sync(ranks_[0].lane);
  std::memcpy(expected.data() + (reinterpret_cast<std::byte*>(guard_) - segment_->data()), &launch_number_,
              sizeof(launch_number_));
  EXPECT_TRUE(everything() == expected);
  both(false);
  // A guard that has reached the last launch number only is as none.
  UploadOperands(7);
  ++launch_number_;
  both(true);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SkinnyRaceTest, testing::ValuesIn(kForms), FormName);
INSTANTIATE_TEST_SUITE_P(Kinds, SkinnySquatterTest, testing::ValuesIn(kForms), FormName);
INSTANTIATE_TEST_SUITE_P(Kinds, SkinnyGatherSquatterTest, testing::Values(kForms[0]), FormName);

}  // namespace
}  // namespace tandem::cuda
