// Memory of trials: kept between them, unmapped behind their work only.
#include "kernels/cuda/matmul/trial_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "drivers/cublaslt/mock_cublas_lt.h"
#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "kernels/cuda/matmul/matmul_trial.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::HasSubstr;
using testing::InSequence;
using testing::Mock;
using testing::NiceMock;
using testing::Return;

constexpr size_t kGranularity = size_t{2} << 20;

class TrialMemoryTest : public testing::Test {
 protected:
  TrialMemoryTest() {
    MakeUsable(driver_, kGranularity, nullptr, stream_, reinterpret_cast<CUevent>(48));
    device_ = *CudaDevice::Create(&driver_, 0);
  }
  CUstream stream_ = reinterpret_cast<CUstream>(32);
  NiceMock<MockCudaDriver> driver_;
  std::shared_ptr<CudaDevice> device_;
};

TEST_F(TrialMemoryTest, PartsLieApartInOneMappingThatIsKept) {
  TrialMemory memory(device_);
  EXPECT_CALL(driver_, MemCreate(2 * kGranularity, _))
      .WillOnce(Return(Result<CUmemGenericAllocationHandle>(1)));
  EXPECT_CALL(driver_, MemUnmap(_, _)).Times(0);
  for (int trial = 0; trial < 3; ++trial) {
    auto parts = memory.Take(std::array<size_t, 3>{5000, 1, kGranularity});
    ASSERT_TRUE(parts.ok());
    const auto base = reinterpret_cast<std::byte*>(kGranularity);
    EXPECT_EQ(*parts, (std::vector<std::byte*>{base, base + 8192, base + 12288}));
    EXPECT_TRUE(memory.Release(stream_).ok());
  }
  Mock::VerifyAndClearExpectations(&driver_);
}

TEST_F(TrialMemoryTest, WhatIsLargeIsUnmappedBehindTheStreamsWork) {
  TrialMemory memory(device_);
  ASSERT_TRUE(memory.Take(std::array<size_t, 1>{TrialMemory::kMaxBytes + 1}).ok());
  InSequence order;
  EXPECT_CALL(driver_, StreamSynchronize(stream_));
  EXPECT_CALL(driver_, MemUnmap(_, _));
  EXPECT_TRUE(memory.Release(stream_).ok());
}

TEST_F(TrialMemoryTest, OfALostContextNothingIsUnmapped) {
  TrialMemory memory(device_);
  ASSERT_TRUE(memory.Take(std::array<size_t, 1>{TrialMemory::kMaxBytes + 1}).ok());
  EXPECT_CALL(driver_, StreamSynchronize(stream_)).WillOnce(Return(Aborted("lost")));
  EXPECT_CALL(driver_, MemUnmap(_, _)).Times(0);
  EXPECT_EQ(memory.Release(stream_).code(), Code::kAborted);
  Mock::VerifyAndClearExpectations(&driver_);
}

// Without a GPU the first kernel of a trial cannot be launched. Others may be on the stream when a later one
// cannot.
TEST_F(TrialMemoryTest, ATrialThatFailsUnmapsNothingBeforeItsWorkHasEnded) {
  NiceMock<MockCublasLt> lt;
  MatmulChooser chooser(device_, &lt, 1);
  MatmulArgs args;
  args.a = {nullptr, DType::kBf16, {8192, 8192}, {8192, 1}};
  args.b = {nullptr, DType::kBf16, {8192, 8192}, {8192, 1}};
  args.c = {nullptr, DType::kBf16, {8192, 8192}, {8192, 1}};
  {
    InSequence order;
    EXPECT_CALL(driver_, StreamSynchronize(stream_));
    EXPECT_CALL(driver_, MemUnmap(_, _));
  }
  Status status = chooser.Prepare(args, {});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(
      status.message(),
      HasSubstr("the trial of a product of 8192x8192 bf16 and 8192x8192 bf16 into bf16, aligned to 16 "
                "bytes, filling its operands"));
  Mock::VerifyAndClearExpectations(&driver_);
}

}  // namespace
}  // namespace tandem::cuda
