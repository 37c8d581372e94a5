// A client's product of few rows ends without its peer, in each role that waits. The launch is named, queued
// launches end, and nothing more is written to the peer.
#include <algorithm>
#include <thread>

#include "tests/gpu/fused/client_skinny_fixture.h"

namespace tandem::cuda {
namespace {

class ClientSkinnyEndTest : public ClientSkinnyTest {
 protected:
  // The launch numbers that words hold; 0 for none.
  static std::vector<uint64_t> NumbersOf(const std::vector<uint64_t>& words) {
    std::vector<uint64_t> numbers;
    for (const uint64_t word : words) numbers.push_back(word >> kLaunchTagBits);
    return numbers;
  }
  // Words of all-reduces that say that sums are there begin behind those of partial sums.
  size_t tiles() const { return static_cast<size_t>(layout_.ctas()); }
  bool sums_by_owners() const { return GetParam().kind == SkinnyKind::kAllReduce && !GetParam().one_step; }
  // A launch of both ranks, so that words and areas hold something.
  void LaunchBoth() {
    UploadOperands(1);
    for (int rank = 0; rank < kRanks; ++rank) Launch(rank);
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(Ends(rank, 5000));
    ASSERT_TRUE(BothAreRight());
  }
  // Rank 0 has given up launch 2. Its next launches end, and change nothing at rank 1.
  void ExpectNothingIsPublished() {
    const std::vector<uint64_t> words = WordsAt(1, 0);
    const std::vector<std::byte> area = AreaAt(1);
    UploadOperands(2);  // other data than what was sent
    for (int launch = 0; launch < 3; ++launch) Launch(0);
    EXPECT_TRUE(Ends(0, 1000)) << "a kernel behind the failure";
    EXPECT_EQ(WordsAt(1, 0), words);
    EXPECT_EQ(AreaAt(1), area);
    EXPECT_EQ(Report(0)->number, 2u);
    EXPECT_LE(Count(0), 1) << "a failed launch was counted by all";
  }
};

TEST_P(ClientSkinnyEndTest, ADeadlineNamesTheRankThatIsLate) {
  MakeClientRanks();
  LaunchBoth();
  Launch(0, kSecond / 10);
  ASSERT_TRUE(Ends(0, 5000));
  EXPECT_EQ(AbortReasonOf(0), AbortReason::kLate);
  EXPECT_EQ(Report(0)->number, 2u);
  EXPECT_EQ(Report(0)->peer, 1u);
  if (sums_by_owners()) {
    const std::vector<uint64_t> numbers = NumbersOf(WordsAt(1, 0));
    for (size_t tile = 0; tile < tiles(); ++tile) EXPECT_EQ(numbers[tiles() + tile], 1u) << tile;
  }
  ExpectNothingIsPublished();
}

TEST_P(ClientSkinnyEndTest, AVerdictEndsALaunchAndAllBehindIt) {
  MakeClientRanks();
  LaunchBoth();
  SetVerdict(3);
  Launch(0);
  EXPECT_FALSE(Ends(0, 50)) << "the verdict is from launch 3 on";
  SetVerdict(2);
  const auto start = Clock::now();
  ASSERT_TRUE(Ends(0, 1000));
  std::printf("[ verdict  ] ended in %.3f ms\n",
              std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  EXPECT_EQ(AbortReasonOf(0), AbortReason::kCutOff);
  EXPECT_EQ(Report(0)->number, 2u);
  ExpectNothingIsPublished();
}

TEST_P(ClientSkinnyEndTest, AnotherTagIsAMismatch) {
  MakeClientRanks();
  LaunchBoth();
  tags_[1] = 8;
  for (int rank = 0; rank < kRanks; ++rank) Launch(rank, 2 * kSecond);
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(Ends(rank, 5000));
  // A rank may see the other's words, and give up, before it writes any.
  const bool first_saw = AbortReasonOf(0) == AbortReason::kMismatch;
  EXPECT_TRUE(first_saw || AbortReasonOf(1) == AbortReason::kMismatch);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(AbortReasonOf(rank) == AbortReason::kMismatch || AbortReasonOf(rank) == AbortReason::kLate);
    EXPECT_EQ(Report(rank)->peer, static_cast<uint64_t>(1 - rank));
  }
  const int saw = first_saw ? 0 : 1;
  EXPECT_EQ(Report(saw)->seen, (uint64_t{2} << kLaunchTagBits) + tags_[static_cast<size_t>(1 - saw)]);
  if (sums_by_owners()) {
    const std::vector<uint64_t> numbers = NumbersOf(WordsAt(1, 0));
    for (size_t tile = 0; tile < tiles(); ++tile) EXPECT_EQ(numbers[tiles() + tile], 1u) << tile;
  }
  ExpectNothingIsPublished();
}

// The host plays the peer and sends a part. Tiles that got theirs go on; the others give up and send no sums.
TEST_P(ClientSkinnyEndTest, APartOfThePeersWordsLetsNoOtherPartPass) {
  MakeClientRanks();
  LaunchBoth();
  const size_t all =
      static_cast<size_t>(GetParam().kind == SkinnyKind::kGather ? layout_.units() : layout_.ctas());
  ASSERT_GE(all, 4u);
  const std::vector<uint64_t> come(all / 2, uint64_t{2} << kLaunchTagBits | kTag);
  Move(ranks_[0].words + kWordsOfWriter, come.data(), come.size() * sizeof(uint64_t));
  Launch(0, kSecond / 10);
  ASSERT_TRUE(Ends(0, 5000));
  EXPECT_EQ(AbortReasonOf(0), AbortReason::kLate);
  EXPECT_EQ(Report(0)->peer, 1u);
  if (sums_by_owners()) {
    const std::vector<uint64_t> numbers = NumbersOf(WordsAt(1, 0));
    for (size_t tile = 0; tile < tiles(); ++tile)
      EXPECT_EQ(numbers[tiles() + tile], tile < come.size() ? 2u : 1u) << "the sum of tile " << tile;
  }
  ExpectNothingIsPublished();
}

// The peer's partial sums have come, its sums do not: who waits for an owner gives up too.
TEST_P(ClientSkinnyEndTest, WhoWaitsForSumsGivesUpToo) {
  if (!sums_by_owners()) GTEST_SKIP() << "no rank waits for an owner's sums";
  MakeClientRanks();
  LaunchBoth();
  const std::vector<uint64_t> come(tiles(), uint64_t{2} << kLaunchTagBits | kTag);
  Move(ranks_[0].words + kWordsOfWriter, come.data(), come.size() * sizeof(uint64_t));
  Launch(0, kSecond / 10);
  ASSERT_TRUE(Ends(0, 5000));
  EXPECT_EQ(AbortReasonOf(0), AbortReason::kLate);
  const std::vector<uint64_t> numbers = NumbersOf(WordsAt(1, 0));
  for (size_t tile = 0; tile < tiles(); ++tile)
    EXPECT_EQ(numbers[tiles() + tile], 2u) << "what came in time was summed and sent, tile " << tile;
  ExpectNothingIsPublished();
}

// Not all of ten CTAs have room, so those that run push what the others should. The host plays the peer, and
// sends nothing before it has the whole shard.
TEST_P(ClientSkinnyEndTest, AGatherMakesProgressOnFewSms) {
  if (GetParam().kind != SkinnyKind::kGather) GTEST_SKIP() << "sums are sent tile by tile";
  constexpr int kLeft = 8;
  MakeClientRanks(2048);
  UploadOperands(77);
  ClearResults();
  ASSERT_GT(layout_.ctas(), kLeft) << "there is room for all CTAs";
  const auto squatters = static_cast<uint32_t>(SmCount() - kLeft);
  ASSERT_TRUE(LaunchSquatter(static_cast<int>(squatters), const_cast<uint32_t*>(HostWord(0)),
                             const_cast<uint32_t*>(HostWord(1)), stream(squatter_))
                  .ok());
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (*HostWord(0) < squatters && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_EQ(*HostWord(0), squatters);
  Launch(0);
  const auto units = static_cast<size_t>(layout_.units());
  const uint64_t value = uint64_t{1} << kLaunchTagBits | kTag;
  const auto all_pushed = [&] {
    const std::vector<uint64_t> words = WordsAt(1, 0);
    return std::all_of(words.begin(), words.begin() + static_cast<ptrdiff_t>(units),
                       [&](uint64_t word) { return word == value; });
  };
  while (!all_pushed() && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(all_pushed());
  const size_t shard = static_cast<size_t>(kRows * layout_.k) * 2;
  std::vector<std::byte> pushed(shard), own(shard);
  Move(pushed.data(), ranks_[1].area[1], shard);  // of launch 1
  Move(own.data(), ranks_[0].a, shard);
  EXPECT_EQ(pushed, own);
  Move(own.data(), ranks_[1].a, shard);
  Move(ranks_[0].area[1] + layout_.slot_bytes(), own.data(), shard);
  const std::vector<uint64_t> words(units, value);
  Move(ranks_[0].words + kWordsOfWriter, words.data(), units * sizeof(uint64_t));
  EXPECT_TRUE(Ends(0, 20'000)) << "no progress";
  *HostWord(1) = 1;
  Sync(squatter_);
  EXPECT_EQ(Count(0), 1);
  EXPECT_TRUE(IsRight(ranks_[0]));
}

INSTANTIATE_TEST_SUITE_P(Kinds, ClientSkinnyEndTest, testing::ValuesIn(kForms), FormName);

}  // namespace
}  // namespace tandem::cuda
