// The order of the fused kernel's words and data on one GPU, with lanes as its peers. It is right under
// random pauses and found wrong with each planted fault. Also: progress beside a kernel that leaves it a few
// SMs; an end by abort; and a cancelled launch. Both ends leave nothing behind.
#include "tests/gpu/fused/fused_race_fixture.h"

namespace tandem::cuda {
namespace {

// The same for pieces that the kernel delivers.
class FusedDeliveryRaceTest : public FusedRaceTest, public testing::WithParamInterface<Delivery> {
 protected:
  FusedDeliveryRaceTest() : FusedRaceTest(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Ways, FusedDeliveryRaceTest,
                         testing::Values(Delivery::kCarried, Delivery::kDirect, Delivery::kBoth));

// Tiles that follow one another on a CTA, of several stages each.
class FusedQueueRaceTest : public FusedRaceTest,
                           public testing::WithParamInterface<std::tuple<Delivery, int64_t>> {
 protected:
  FusedQueueRaceTest() : FusedRaceTest(std::get<0>(GetParam()), {.k = std::get<1>(GetParam()), .ctas = 3}) {}
};
INSTANTIATE_TEST_SUITE_P(Ways, FusedQueueRaceTest,
                         testing::Combine(testing::Values(Delivery::kNone, Delivery::kCarried,
                                                          Delivery::kDirect, Delivery::kBoth),
                                          testing::Values(64, 640)));

TEST_P(FusedQueueRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(FusedFault::kNone), 0); }

TEST_P(FusedQueueRaceTest, PlantedFaultsAreFound) {
  for (FusedFault fault :
       {FusedFault::kFlagBeforeData, FusedFault::kMissingWait, FusedFault::kStaleLaunchNumber}) {
    EXPECT_GT(CountWrong(fault), 0) << static_cast<int>(fault);
  }
}

// CTAs that share the last two tiles, or all of them, along K; the last ones' peers' sums come on top.
class FusedStreamKRaceTest : public FusedRaceTest,
                             public testing::WithParamInterface<std::tuple<Delivery, int>> {
 protected:
  FusedStreamKRaceTest()
      : FusedRaceTest(std::get<0>(GetParam()), {.k = 640, .ctas = std::get<1>(GetParam()), .splits = true}) {}
};
INSTANTIATE_TEST_SUITE_P(Ways, FusedStreamKRaceTest,
                         testing::Combine(testing::Values(Delivery::kNone, Delivery::kCarried,
                                                          Delivery::kDirect, Delivery::kBoth),
                                          testing::Values(5, 16)));

TEST_P(FusedStreamKRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(FusedFault::kNone), 0); }

// All that peers deliver is there before: what goes wrong is the CTAs' own sums.
TEST_P(FusedStreamKRaceTest, FaultsBetweenCtasAreFound) {
  for (FusedFault fault : {FusedFault::kNone, FusedFault::kFlagBeforeData, FusedFault::kMissingWait,
                           FusedFault::kStaleLaunchNumber}) {
    const FusedVariant variant = HookedVariant(fault);
    int wrong = 0;
    for (int i = 0; i < kLaunches && !HasFatalFailure(); ++i) {
      const Launch launch = Draw(static_cast<uint32_t>(i) + 1);
      UploadLaunch(launch);
      EnqueuePeers(++launch_number_);
      Sync(peer_);
      EnqueueKernel(variant, launch_number_);
      Sync(main_);
      wrong += Wrong(made(), launch);
    }
    if (fault == FusedFault::kNone) {
      EXPECT_EQ(wrong, 0);
    } else {
      EXPECT_GT(wrong, 0) << static_cast<int>(fault);
    }
  }
}

TEST_F(FusedRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(FusedFault::kNone), 0); }

TEST_F(FusedRaceTest, AFlagBeforeItsDataIsFound) { EXPECT_GT(CountWrong(FusedFault::kFlagBeforeData), 0); }

TEST_F(FusedRaceTest, AMissingWaitIsFound) { EXPECT_GT(CountWrong(FusedFault::kMissingWait), 0); }

TEST_F(FusedRaceTest, AStaleLaunchNumberIsFound) { EXPECT_GT(CountWrong(FusedFault::kStaleLaunchNumber), 0); }

TEST_P(FusedDeliveryRaceTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrong(FusedFault::kNone), 0); }

TEST_P(FusedDeliveryRaceTest, PlantedFaultsAreFound) {
  for (FusedFault fault :
       {FusedFault::kFlagBeforeData, FusedFault::kMissingWait, FusedFault::kStaleLaunchNumber}) {
    EXPECT_GT(CountWrong(fault), 0) << static_cast<int>(fault);
  }
}

TEST_P(FusedDeliveryRaceTest, NothingIsDeliveredBeforePeersHaveEntered) {
  const Launch before = Draw(7), launch = Draw(8);
  UploadLaunch(before);
  const FusedVariant variant = HookedVariant(FusedFault::kNone);
  EXPECT_EQ(RunOnce(variant, ++launch_number_, before, false), 0);
  UploadLaunch(launch);
  EnqueueKernel(variant, ++launch_number_);
  EnqueueReader(launch_number_);
  EnqueuePeers(launch_number_, false);
  EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(20)));
  EXPECT_EQ(Wrong(sent_, before), 0) << "something has been delivered";
  ASSERT_TRUE(backend_->StoreWord(word(7), launch_number_).ok());
  for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
  EXPECT_EQ(Wrong(sent_, launch), 0);
  EXPECT_EQ(Wrong(seen_, launch), 0);
}

// A band's sums are taken when they are there, and the kernel ends when its closing words have come.
TEST_P(FusedDeliveryRaceTest, WaitsForEachBandAndToBeClosed) {
  const Launch launch = Draw(9);
  UploadLaunch(launch);
  EnqueueKernel(HookedVariant(FusedFault::kNone), ++launch_number_);
  EnqueueReader(launch_number_);
  Copy(*peer_, a_ + a_bytes(), landing_, a_bytes());
  ASSERT_TRUE(peer_->WriteWord(word(0), launch_number_).ok());
  ASSERT_TRUE(peer_->WriteWord(word(7), launch_number_).ok());
  Copy(*peer_, sums_, slots_, 2 * kCBytes);
  for (int source = 0; source < 2; ++source)
    ASSERT_TRUE(peer_->WriteWord(word(1 + source), launch_number_).ok());
  Sync(peer_);
  EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(5)));
  EXPECT_EQ(word_value(5), launch_number_ - 1) << "the second band has not come";
  for (int source = 0; source < 2; ++source)
    ASSERT_TRUE(peer_->WriteWord(word(1 + source + kBandStep), launch_number_).ok());
  Sync(reader_);
  EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(5))) << "not closed";
  ASSERT_TRUE(backend_->StoreWord(word(8), launch_number_).ok());
  EXPECT_TRUE(EndsWithin(std::chrono::seconds(1)));
  EXPECT_EQ(Wrong(sent_, launch), 0);
  EXPECT_EQ(Wrong(seen_, launch), 0);
}

// A CTA for each tile, and more CTAs than tiles, which share them.
class FusedEndRaceTest : public FusedRaceTest, public testing::WithParamInterface<bool> {
 protected:
  FusedEndRaceTest()
      : FusedRaceTest(Delivery::kNone, GetParam() ? Extent{.k = 640, .ctas = 16, .splits = true} : Extent{}) {
  }
};
INSTANTIATE_TEST_SUITE_P(Shares, FusedEndRaceTest, testing::Bool());

// All but four SMs are held: most CTAs of the kernel cannot run before others have ended.
TEST_P(FusedEndRaceTest, MakesProgressBesideAKernelThatHoldsMostSms) {
  const Launch launch = Draw(77);
  UploadLaunch(launch);
  // A copy within the GPU would stand behind the CTAs that have no room: the peers' data are there, their
  // words come later.
  Copy(*peer_, a_ + a_bytes(), landing_, a_bytes());
  Copy(*peer_, sums_, slots_, 2 * kCBytes);
  Sync(peer_);
  const int squatters = SmCount() - 4;
  ASSERT_GT(kTiles, SmCount() - squatters) << "there is room for all of its CTAs";
  auto* holding = const_cast<uint32_t*>(HostWord(0));
  ASSERT_TRUE(LaunchSquatter(squatters, holding, const_cast<uint32_t*>(HostWord(1)), stream(squatter_)).ok());
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (*HostWord(0) < static_cast<uint32_t>(squatters) && Clock::now() < deadline)
    std::this_thread::yield();
  ASSERT_EQ(*HostWord(0), static_cast<uint32_t>(squatters));
  EnqueueKernel(HookedVariant(FusedFault::kNone), ++launch_number_);
  EnqueueReader(launch_number_);
  EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(20)));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(peer_->WriteWord(word(i), launch_number_).ok());
  EXPECT_TRUE(EndsWithin(std::chrono::seconds(20))) << "no progress";
  *HostWord(1) = 1;
  for (auto* lane : {&main_, &peer_, &reader_, &squatter_}) Sync(*lane);
  EXPECT_EQ(Wrong(made(), launch), 0);
  EXPECT_EQ(Wrong(seen_, launch), 0);
}

TEST_P(FusedEndRaceTest, AbortEndsItAndTheNextLaunchIsRight) {
  const Launch launch = Draw(99);
  UploadLaunch(launch);
  EnqueueKernel(HookedVariant(FusedFault::kNone), ++launch_number_);
  EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(20)));
  auto* abort = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(2)));
  abort->store(1, std::memory_order_release);
  EXPECT_TRUE(EndsWithin(std::chrono::seconds(1)));
  abort->store(0, std::memory_order_release);
  // Without an abort the wait's own bound ends it.
  EnqueueKernel(HookedVariant(FusedFault::kNone), ++launch_number_, 50'000'000);
  EXPECT_TRUE(EndsWithin(std::chrono::seconds(1)));
  // Tickets and counters are as at the start.
  EnqueueKernel(HookedVariant(FusedFault::kNone), ++launch_number_);
  EnqueueReader(launch_number_);
  EnqueuePeers(launch_number_);
  for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
  EXPECT_EQ(Wrong(made(), launch), 0);
  EXPECT_EQ(Wrong(seen_, launch), 0);
}

// As an engine cancels what it has enqueued ahead: the kernel stands behind a wait when its guard is
// raised. Kernels of one CTA and of clusters; what came before has left its words, state and outputs.
TEST_P(FusedEndRaceTest, ACancelledKernelLeavesNoTraceAndTheSameLaunchNumberIsRight) {
  std::vector<FusedVariant> variants{HookedVariant(FusedFault::kNone)};
  for (const FusedVariant& variant : FusedVariants()) {
    const auto bf16 = static_cast<uint8_t>(DType::kBf16);
    if (variant.type == bf16 && variant.out_type == bf16 && variant.sums && !variant.b_along_n)
      variants.push_back(variant);
  }
  ASSERT_GE(variants.size(), 3u);
  auto* gate = reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(3)));
  for (const FusedVariant& variant : variants) {
    SCOPED_TRACE("tiles of " + std::to_string(variant.tile_n) + " columns, clusters of " +
                 std::to_string(variant.cluster_m));
    const Launch before = Draw(static_cast<uint32_t>(launch_number_) + 1),
                 launch = Draw(static_cast<uint32_t>(launch_number_) + 2);
    UploadLaunch(before);
    ++launch_number_;
    EXPECT_EQ(RunOnce(variant, launch_number_, before, false), 0);
    ++launch_number_;
    UploadLaunch(launch);
    std::vector<std::byte> expected = Everything();
    ASSERT_TRUE(main_->WaitWord(gate, launch_number_).ok());
    EnqueueKernel(variant, launch_number_, 20'000'000'000, true);
    EXPECT_FALSE(EndsWithin(std::chrono::milliseconds(5)));
    ASSERT_TRUE(backend_->StoreWord(word(6), launch_number_).ok());
    gate->store(launch_number_, std::memory_order_release);
    EXPECT_TRUE(EndsWithin(std::chrono::seconds(1))) << "though no peer comes";
    Sync(main_);
    std::memcpy(expected.data() + (reinterpret_cast<std::byte*>(word(6)) - segment_->data()), &launch_number_,
                sizeof(launch_number_));
    EXPECT_TRUE(Everything() == expected);
    EXPECT_EQ(RunOnce(variant, launch_number_, launch, false), 0);
    // A guard that has reached the last launch number only is as none.
    UploadLaunch(before);
    ++launch_number_;
    EXPECT_EQ(RunOnce(variant, launch_number_, before, true), 0);
  }
}

}  // namespace
}  // namespace tandem::cuda
