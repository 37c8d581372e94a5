// How long the candidates of a product are tried, and which is chosen. Driver and cuBLASLt are mocked: the
// GPU's clock goes on by what runs, and stands behind the CPU's, which goes on by what is enqueued.
#include "kernels/cuda/matmul/matmul_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/matmul/matmul_plan.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::Each;
using testing::NiceMock;
using testing::Return;

constexpr int kCandidates = 8;

// Candidate i's number is in its algorithm's data.
class TimedLt : public CublasLt {
 public:
  uint64_t Version() const override { return 130200; }
  Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const LtProduct&, size_t, int most) override {
    std::vector<cublasLtMatmulAlgo_t> all(static_cast<size_t>(std::min(most, listed)));
    for (size_t i = 0; i < all.size(); ++i) all[i].data[0] = i;
    return all;
  }
  Result<bool> Supports(const LtProduct&, const cublasLtMatmulAlgo_t& algorithm, size_t) override {
    return bool{supported[algorithm.data[0]]};
  }
  Status Run(const LtProduct&, const LtOperands& operands, const cublasLtMatmulAlgo_t& algorithm, void*,
             size_t, CUstream) override {
    const size_t i = algorithm.data[0];
    if (operands.beta != 0) {
      adding.push_back(i);
      return Status::Ok();
    }
    ++runs[i];
    last = i;
    cpu_ms += enqueue_ms;
    now_ms = std::max(now_ms, cpu_ms) + ms[i];
    return Status::Ok();
  }
  // The CPU has waited for the stream.
  void Wait() { cpu_ms = std::max(cpu_ms, now_ms); }
  int AllRuns() const { return std::accumulate(runs.begin(), runs.end(), 0); }

  float now_ms = 0, cpu_ms = 0, enqueue_ms = 0;
  std::vector<float> ms = std::vector<float>(kCandidates, 1.0f);
  std::vector<int> runs = std::vector<int>(kCandidates);
  std::vector<bool> supported = std::vector<bool>(kCandidates, true);  // of products that were not tried
  std::vector<size_t> adding;                                          // candidates that ran with an old C
  size_t last = 0;
  int listed = kCandidates;
};

class MatmulTrialTest : public testing::Test {
 protected:
  MatmulTrialTest() {
    MakeUsable(driver_, size_t{2} << 20, nullptr, reinterpret_cast<CUstream>(32), nullptr);
    ON_CALL(driver_, EventCreate(_)).WillByDefault([this](unsigned) {
      return Result<CUevent>(reinterpret_cast<CUevent>(++events_));
    });
    ON_CALL(driver_, EventRecord(_, _)).WillByDefault([this](CUevent event, CUstream) {
      recorded_[event] = lt_.now_ms = std::max(lt_.now_ms, lt_.cpu_ms);
      return Status::Ok();
    });
    ON_CALL(driver_, StreamSynchronize(_)).WillByDefault([this](CUstream) {
      lt_.Wait();
      return Status::Ok();
    });
    ON_CALL(driver_, EventElapsedTime(_, _)).WillByDefault([this](CUevent start, CUevent end) {
      return Result<float>(recorded_[end] - recorded_[start]);
    });
    device_ = *CudaDevice::Create(&driver_, 0);
    chooser_ = std::make_unique<MatmulChooser>(device_, &lt_, kCandidates, kCalls);
    paused_ = &lt_;
  }
  // It has two trials, of operands that are aligned to 16 bytes and to their elements.
  static MatmulArgs Product(int64_t rows, int64_t n = 48, int64_t k = 64) {
    const auto dense = [](std::vector<int64_t> extent) {
      std::vector<int64_t> stride = ContiguousStrides(extent);
      return DeviceView{reinterpret_cast<std::byte*>(0x10000), DType::kBf16, std::move(extent),
                        std::move(stride)};
    };
    MatmulArgs args;
    args.a = dense({rows, k});
    args.b = dense({k, n});
    args.c = dense({rows, n});
    return args;
  }
  // The candidate that a launch takes.
  size_t Chosen(const MatmulArgs& args) {
    EXPECT_TRUE(chooser_->Enqueue(args, nullptr, nullptr).ok());
    return lt_.last;
  }
  static inline TimedLt* paused_ = nullptr;
  static constexpr TrialCalls kCalls = {
      .fill = [](void*, DType, int64_t, uint32_t, CUstream_st*) { return Status::Ok(); },
      .pause =
          [](uint64_t ns, CUstream_st*) {
            paused_->now_ms = std::max(paused_->now_ms, paused_->cpu_ms) + static_cast<float>(ns) * 1e-6f;
            return Status::Ok();
          }};

  NiceMock<MockCudaDriver> driver_;
  TimedLt lt_;
  uintptr_t events_ = 0;
  std::map<CUevent, float> recorded_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<MatmulChooser> chooser_;
};

TEST_F(MatmulTrialTest, ShortProductsRunFourRoundsOfFourForBothAlignments) {
  lt_.ms.assign(kCandidates, 0.125f);
  lt_.ms[2] = 0.25f;  // far behind
  lt_.ms[5] = 0.109375f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  for (size_t i = 0; i < kCandidates; ++i) EXPECT_EQ(lt_.runs[i], i == 2 ? 2 * 4 : 2 * 16) << i;
  EXPECT_EQ(Chosen(Product(33)), 5u);
}

TEST_F(MatmulTrialTest, AnEffortBoundsRoundsAndAlignments) {
  lt_.ms.assign(kCandidates, 0.125f);
  ASSERT_TRUE(chooser_->Prepare(Product(33), {.rounds = 2, .unaligned = false}).ok());
  EXPECT_THAT(lt_.runs, Each(2 * 4));
}

// The heuristics list what they think best for the rows, and leave out what is faster.
TEST_F(MatmulTrialTest, WhatNeighboursTookIsACandidateToo) {
  lt_.ms[5] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(16), {}).ok());
  lt_.listed = 4;
  ASSERT_TRUE(chooser_->Prepare(Product(24), {}).ok());
  EXPECT_EQ(Chosen(Product(24)), 5u);
  lt_.supported[5] = false;
  ASSERT_TRUE(chooser_->Prepare(Product(32), {}).ok());
  EXPECT_LT(Chosen(Product(32)), 4u);
}

// The CPU takes longer to enqueue such a product than the GPU to compute it. Enqueued behind a pause, the
// faster one is seen all the same.
TEST_F(MatmulTrialTest, BriefProductsAreTimedBehindAPause) {
  lt_.enqueue_ms = 0.006f;
  lt_.ms.assign(kCandidates, 0.005f);
  lt_.ms[3] = 0.004f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 3u);
  EXPECT_LE(lt_.now_ms, kTrialBudgetMs);
}

// Both alignments' choices also run as they do for further shards of a gather along K.
TEST_F(MatmulTrialTest, TheFastestRunsOnceWithAnOldC) {
  lt_.ms[5] = 0.5f;
  MatmulArgs product = Product(33);
  ASSERT_TRUE(chooser_->Prepare(product, {}).ok());
  EXPECT_TRUE(lt_.adding.empty()) << "bf16 is never added to";
  product.c.dtype = DType::kF32;
  ASSERT_TRUE(chooser_->Prepare(product, {}).ok());
  EXPECT_EQ(lt_.adding, (std::vector<size_t>{5, 5}));
}

// The best so far, of as many candidates as fit: a run behind one that warms up each.
TEST_F(MatmulTrialTest, LongProductsStopAtTheBudget) {
  lt_.ms.assign(kCandidates, 20);
  lt_.ms[3] = 19;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_LE(lt_.now_ms, kTrialBudgetMs);
  EXPECT_EQ(lt_.runs, (std::vector<int>{2, 2, 2, 2, 2, 0, 0, 0})) << "and none for other alignments";
  EXPECT_EQ(Chosen(Product(33)), 3u);
}

TEST_F(MatmulTrialTest, ProductsBetweenRunFewerRounds) {
  lt_.ms.assign(kCandidates, 4);
  lt_.ms[6] = 3;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_LE(lt_.now_ms, kTrialBudgetMs);
  EXPECT_GT(lt_.now_ms, kTrialBudgetMs / 2);
  EXPECT_GE(*std::min_element(lt_.runs.begin(), lt_.runs.end()), 2) << "each has its turn";
  EXPECT_EQ(Chosen(Product(33)), 6u);
}

// Only a whole run measures the time of a product.
TEST_F(MatmulTrialTest, AProductLongerThanTheBudgetRunsOnce) {
  lt_.ms.assign(kCandidates, 2000);
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(lt_.AllRuns(), 1);
  EXPECT_EQ(Chosen(Product(33)), 0u);
  // The next plan has a separate budget.
  lt_.runs.assign(kCandidates, 0);
  lt_.ms.assign(kCandidates, 0.125f);
  ASSERT_TRUE(chooser_->Prepare(Product(34), {}).ok());
  EXPECT_THAT(lt_.runs, Each(2 * 16));
}

TEST_F(MatmulTrialTest, OtherRowsTakeTheChoiceOfTheNextTriedOnes) {
  lt_.ms[5] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(16), {}).ok());
  lt_.ms[5] = 1;
  lt_.ms[3] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(64), {}).ok());
  const int tried = lt_.AllRuns();
  EXPECT_EQ(Chosen(Product(9)), 5u);
  EXPECT_EQ(Chosen(Product(17)), 3u);
  EXPECT_EQ(Chosen(Product(64)), 3u);
  EXPECT_EQ(Chosen(Product(100)), 3u) << "fewer rows than these";
  EXPECT_EQ(Chosen(Product(17, 80)), 0u) << "the heuristics', for another weight";
  EXPECT_EQ(lt_.AllRuns(), tried + 5) << "none of them was tried";
  lt_.supported[3] = false;
  EXPECT_EQ(Chosen(Product(18)), 0u);
  EXPECT_EQ(Chosen(Product(17)), 3u) << "as before";
  lt_.ms[6] = 0.25f;
  ASSERT_TRUE(chooser_->Prepare(Product(17), {}).ok());
  EXPECT_EQ(Chosen(Product(17)), 6u) << "tried now";
}

TEST_F(MatmulTrialTest, OneThatNoGpuComputesWithinTheBudgetIsNotTried) {
  const MatmulArgs huge = Product(65536, 65536, 65536);
  ASSERT_TRUE(chooser_->Prepare(huge, {}).ok());
  EXPECT_EQ(lt_.AllRuns(), 0);
  EXPECT_EQ(Chosen(huge), 0u);
  // 281 ms in bf16 at an H200's 1e15 a second, half of it in fp8, many times as long in f32.
  LtProduct product;
  product.x = {CUDA_R_16BF, 65536, 32768, 65536, false};
  product.d = {CUDA_R_16BF, 65536, 65536, 65536, false};
  EXPECT_NEAR(LeastMs(product), 281, 1);
  product.x.type = CUDA_R_8F_E4M3;
  EXPECT_NEAR(LeastMs(product), 141, 1);
  product.x.type = CUDA_R_32F;
  EXPECT_GT(LeastMs(product), 4000);
}

TEST_F(MatmulTrialTest, ARepeatableOneIsNotTriedAndTakesTheFirst) {
  lt_.ms[6] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 6u);
  const int runs = lt_.AllRuns();
  MatmulArgs same = Product(33);
  same.repeatable = true;
  ASSERT_TRUE(chooser_->Prepare(same, {}).ok());
  EXPECT_EQ(lt_.AllRuns(), runs);
  EXPECT_EQ(Chosen(same), 0u);
  EXPECT_EQ(Chosen(Product(33)), 6u);
}

// It runs on the plain kernel.
TEST_F(MatmulTrialTest, AFixedOrderIsNotTried) {
  MatmulArgs fixed = Product(33);
  fixed.fixed_order = true;
  ASSERT_TRUE(chooser_->Prepare(fixed, {}).ok());
  EXPECT_EQ(lt_.AllRuns(), 0);
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_GT(lt_.AllRuns(), 0);
}

// On a GPU that is full there is no trial, and the first guess is taken.
TEST_F(MatmulTrialTest, WithoutMemoryTheFirstIsTaken) {
  EXPECT_CALL(driver_, MemCreate(_, _))
      .WillRepeatedly(Return(
          Result<CUmemGenericAllocationHandle>(ResourceExhausted("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"))));
  lt_.ms[4] = 0.5f;
  Status status = chooser_->Prepare(Product(33), {});
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(lt_.AllRuns(), 0);
  EXPECT_EQ(Chosen(Product(33)), 0u);
  EXPECT_CALL(driver_, MemCreate(_, _))
      .WillRepeatedly(Return(Result<CUmemGenericAllocationHandle>(Aborted("lost"))));
  EXPECT_EQ(chooser_->Prepare(Product(34), {}).code(), Code::kAborted) << "other failures are told";
}

// Choosers of several processes, with a folder that they share.
class StoredChoicesTest : public MatmulTrialTest {
 protected:
  StoredChoicesTest() { TakeOver(); }
  ~StoredChoicesTest() override { std::filesystem::remove_all(folder_); }
  // Another process takes this one's place.
  void TakeOver() {
    chooser_ = std::make_unique<MatmulChooser>(device_, &lt_, kCandidates, kCalls,
                                               std::make_unique<ChoiceStore>(folder_, "GPU", 1));
    lt_.runs.assign(kCandidates, 0);
  }
  const std::string folder_ = testing::TempDir() + "choices-" + std::to_string(::getpid()) + "-" +
                              testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(StoredChoicesTest, AnotherProcessRunsTheChosenOneAlone) {
  lt_.ms[5] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 5u);
  TakeOver();
  lt_.ms[5] = 2;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_GT(lt_.runs[5], 0) << "its kernel is loaded";
  EXPECT_EQ(lt_.AllRuns(), lt_.runs[5]) << "no other one ran";
  EXPECT_EQ(Chosen(Product(33)), 5u);
  EXPECT_EQ(Chosen(Product(20)), 5u) << "fewer rows take it too";
  ASSERT_TRUE(chooser_->Prepare(Product(48), {}).ok());
  EXPECT_GT(lt_.runs[0], 0) << "a product that nobody tried";
}

TEST_F(StoredChoicesTest, OneThatDoesNotRunHereIsReplaced) {
  lt_.ms[5] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  TakeOver();
  lt_.supported[5] = false;
  lt_.ms[5] = 1;
  lt_.ms[2] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 2u);
  TakeOver();
  lt_.ms[2] = 1;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 2u);
  EXPECT_EQ(lt_.AllRuns(), lt_.runs[2]);
}

TEST_F(StoredChoicesTest, ATrialThatEndedEarlyIsMadeAgain) {
  lt_.ms.assign(kCandidates, 90.0f);
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_LT(lt_.AllRuns(), kCandidates);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  TakeOver();
  lt_.ms.assign(kCandidates, 1.0f);
  lt_.ms[7] = 0.5f;
  ASSERT_TRUE(chooser_->Prepare(Product(33), {}).ok());
  EXPECT_EQ(Chosen(Product(33)), 7u);
}

}  // namespace
}  // namespace tandem::cuda
