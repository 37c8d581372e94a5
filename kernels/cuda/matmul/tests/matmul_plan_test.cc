// The places of an fp8 product's scales and bias that cuBLASLt gets, and the handling of refused products.
// Driver and cuBLASLt are mocked: the plain kernel's launch fails here, which shows that it was tried.
#include "kernels/cuda/matmul/matmul_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "kernels/cuda/matmul/block_scales.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::IsEmpty;
using testing::NiceMock;
using testing::SizeIs;

constexpr size_t kMemory = size_t{2} << 20;  // where the mocked driver has all memory

class RecordingLt : public CublasLt {
 public:
  uint64_t Version() const override { return 130200; }
  Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const LtProduct& product, size_t, int) override {
    asked.push_back(product);
    return std::vector<cublasLtMatmulAlgo_t>(1);
  }
  Result<bool> Supports(const LtProduct&, const cublasLtMatmulAlgo_t&, size_t) override { return true; }
  Status Run(const LtProduct&, const LtOperands& operands, const cublasLtMatmulAlgo_t&, void*,
             size_t workspace_bytes, CUstream) override {
    EXPECT_EQ(workspace_bytes, workspace) << "factors and the copies of vectors lie behind it";
    runs.push_back(operands);
    return status;
  }
  size_t workspace = kMatmulWorkspaceBytes;
  std::vector<LtProduct> asked;
  std::vector<LtOperands> runs;
  Status status;
};

struct VectorCopy {
  uintptr_t to, from;
  size_t bytes;
};

class MatmulPlanTest : public testing::Test {
 protected:
  MatmulPlanTest() {
    MakeUsable(driver_, kMemory, nullptr, reinterpret_cast<CUstream>(32), reinterpret_cast<CUevent>(48));
    ON_CALL(driver_, MemcpyAsync(_, _, _, _))
        .WillByDefault([this](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
          copies_.push_back({static_cast<uintptr_t>(to), static_cast<uintptr_t>(from), bytes});
          return Status::Ok();
        });
    device_ = *CudaDevice::Create(&driver_, 0);
    lane_ = *CudaLane::Create(device_, std::make_shared<MatmulChooser>(device_, &lt_, 1), 0);
  }
  // Addresses are only passed on. 33 rows, 48 columns and K = 64 of e4m3, B dense along K.
  static DeviceView At(uintptr_t address, DType type, std::vector<int64_t> extent,
                       std::vector<int64_t> stride = {}) {
    if (stride.empty()) stride = ContiguousStrides(extent);
    return {reinterpret_cast<std::byte*>(address), type, std::move(extent), std::move(stride)};
  }
  static MatmulArgs Float8(uintptr_t scale_a, uintptr_t scale_b, int64_t rows = 33) {
    MatmulArgs args;
    args.a = At(0x10000, DType::kF8E4M3, {rows, 64});
    args.b = At(0x20000, DType::kF8E4M3, {64, 48}, {1, 64});
    args.c = At(0x30000, DType::kBf16, {rows, 48});
    args.has_scale_a = args.has_scale_b = true;
    args.scale_a = At(scale_a, DType::kF32, {rows, 1});
    args.scale_b = At(scale_b, DType::kF32, {1, 48});
    return args;
  }
  // C is row-major, hence X is B and Y is A.
  static uintptr_t OfA(const LtOperands& run) { return reinterpret_cast<uintptr_t>(run.y_scale); }
  static uintptr_t OfB(const LtOperands& run) { return reinterpret_cast<uintptr_t>(run.x_scale); }
  static uintptr_t Bias(const LtOperands& run) { return reinterpret_cast<uintptr_t>(run.bias); }
  // In the scratch behind the workspace, aligned.
  static void ExpectScratch(const VectorCopy& copy) {
    EXPECT_EQ(copy.to % kVectorAlignment, 0u);
    EXPECT_GE(copy.to, kMemory + kMatmulWorkspaceBytes);
    EXPECT_LE(copy.to + copy.bytes, kMemory + kMatmulScratchBytes);
  }

  NiceMock<MockCudaDriver> driver_;
  RecordingLt lt_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CudaLane> lane_;
  std::vector<VectorCopy> copies_;
};

TEST_F(MatmulPlanTest, AlignedVectorsStayWhereTheyAre) {
  MatmulArgs args = Float8(0x40010, 0x50020);
  args.has_bias = true;
  args.bias = At(0x60030, DType::kBf16, {48});
  ASSERT_TRUE(lane_->Matmul(args).ok());
  EXPECT_THAT(copies_, IsEmpty());
  ASSERT_THAT(lt_.runs, SizeIs(1));
  EXPECT_EQ(OfA(lt_.runs[0]), 0x40010u);
  EXPECT_EQ(OfB(lt_.runs[0]), 0x50020u);
  EXPECT_EQ(Bias(lt_.runs[0]), 0x60030u);
}

TEST_F(MatmulPlanTest, AVectorBetweenMultiplesOf16BytesIsCopied) {
  // A second chunk of 33 rows, and one of 30 or of one row.
  for (uintptr_t offset : {33 * 4, 30 * 4, 4}) {
    copies_.clear();
    lt_.runs.clear();
    ASSERT_TRUE(lane_->Matmul(Float8(0x40000 + offset, 0x50000)).ok());
    ASSERT_THAT(copies_, SizeIs(1));
    EXPECT_EQ(copies_[0].from, 0x40000 + offset);
    EXPECT_EQ(copies_[0].bytes, 33u * 4);
    ExpectScratch(copies_[0]);
    ASSERT_THAT(lt_.runs, SizeIs(1));
    EXPECT_EQ(OfA(lt_.runs[0]), copies_[0].to);
    EXPECT_EQ(OfB(lt_.runs[0]), 0x50000u);
  }
  ASSERT_THAT(lt_.asked, SizeIs(1));
  EXPECT_EQ(lt_.asked[0].alignment, 16u) << "A, B and C are aligned";
}

TEST_F(MatmulPlanTest, ScalesOfBothAndBiasAreCopiedSideBySide) {
  MatmulArgs args = Float8(0x40004, 0x50008);
  args.has_bias = true;
  args.bias = At(0x60002, DType::kBf16, {48});
  ASSERT_TRUE(lane_->Matmul(args).ok());
  ASSERT_THAT(copies_, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    ExpectScratch(copies_[i]);
    if (i > 0) {
      EXPECT_GE(copies_[i].to, copies_[i - 1].to + copies_[i - 1].bytes);
    }
  }
  EXPECT_EQ(copies_[0].from, 0x50008u);
  EXPECT_EQ(copies_[0].bytes, 48u * 4);
  EXPECT_EQ(copies_[1].from, 0x40004u);
  EXPECT_EQ(copies_[2].from, 0x60002u);
  EXPECT_EQ(copies_[2].bytes, 48u * 2);
  ASSERT_THAT(lt_.runs, SizeIs(1));
  EXPECT_EQ(OfB(lt_.runs[0]), copies_[0].to);
  EXPECT_EQ(OfA(lt_.runs[0]), copies_[1].to);
  EXPECT_EQ(Bias(lt_.runs[0]), copies_[2].to);
}

TEST_F(MatmulPlanTest, AScaleOfTheTensorIsOneFactor) {
  MatmulArgs args = Float8(0x40004, 0x50000, 1);  // a chunk of one row
  args.scale_b = At(0x50000, DType::kF32, {1});
  ASSERT_TRUE(lane_->Matmul(args).ok());
  ASSERT_THAT(copies_, SizeIs(1));
  EXPECT_EQ(copies_[0].from, 0x40004u);
  EXPECT_EQ(copies_[0].bytes, 4u);
  ASSERT_THAT(lt_.runs, SizeIs(1));
  EXPECT_EQ(OfA(lt_.runs[0]), copies_[0].to);
}

TEST_F(MatmulPlanTest, EachChunkOfRowsHasItsOwnScales) {
  MatmulArgs args = Float8(0x40000, 0x50000);
  args.has_chunk_signals = true;
  args.chunk_signals.extent = {3};  // of 11 rows: the second's scales lie at 44 bytes, the third's at 88
  ASSERT_TRUE(lane_->Matmul(args).ok());
  ASSERT_THAT(lt_.runs, SizeIs(3));
  EXPECT_EQ(OfA(lt_.runs[0]), 0x40000u);
  ASSERT_THAT(copies_, SizeIs(2));
  for (size_t chunk : {1, 2}) {
    EXPECT_EQ(copies_[chunk - 1].from, 0x40000 + chunk * 44);
    EXPECT_EQ(copies_[chunk - 1].bytes, 44u);
    EXPECT_EQ(OfA(lt_.runs[chunk]), copies_[chunk - 1].to);
  }
}

TEST_F(MatmulPlanTest, VectorsBeyondTheScratchGoToThePlainKernel) {
  MatmulArgs args = Float8(0x40004, 0x50000, int64_t{1} << 20);
  EXPECT_FALSE(lane_->Matmul(args).ok()) << "no GPU here";
  EXPECT_THAT(copies_, IsEmpty());
  EXPECT_THAT(lt_.runs, IsEmpty());
}

// Where they work: with candidates for what is aligned to elements only.
TEST_F(MatmulPlanTest, OtherTypesKeepTheirBias) {
  MatmulArgs args;
  args.a = At(0x10000, DType::kBf16, {33, 64});
  args.b = At(0x20000, DType::kBf16, {64, 48});
  args.c = At(0x30000, DType::kBf16, {33, 48});
  args.has_bias = true;
  args.bias = At(0x60002, DType::kBf16, {48});
  ASSERT_TRUE(lane_->Matmul(args).ok());
  EXPECT_THAT(copies_, IsEmpty());
  ASSERT_THAT(lt_.asked, SizeIs(1));
  EXPECT_EQ(lt_.asked[0].alignment, 2u);
}

TEST_F(MatmulPlanTest, WhatIsRefusedGoesToThePlainKernelFromThenOn) {
  lt_.status = CublasStatus("cublasLtMatmul", CUBLAS_STATUS_NOT_SUPPORTED, "refused");
  for (int launch = 0; launch < 2; ++launch) {
    Status status = lane_->Matmul(Float8(0x40000, 0x50000));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::kUnimplemented)
        << "the plain kernel's error, not cuBLASLt's: " << status.ToString();
  }
  EXPECT_THAT(lt_.runs, SizeIs(1)) << "asked once";
  // An error is none.
  lt_.status = CublasStatus("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED, "lost");
  EXPECT_EQ(lane_->Matmul(Float8(0x40000, 0x50000, 16)).code(), Code::kInternal);
}

// 64 rows, 384 columns and K = 512: 4 blocks of K, 3 of columns.
MatmulArgs BlockScaled(DeviceView scale_a, DeviceView scale_b, int64_t rows = 64, int64_t n = 384) {
  const auto at = [](uintptr_t address, DType type, std::vector<int64_t> extent,
                     std::vector<int64_t> stride) {
    return DeviceView{reinterpret_cast<std::byte*>(address), type, std::move(extent), std::move(stride)};
  };
  MatmulArgs args;
  args.a = at(0x10000, DType::kF8E4M3, {rows, 512}, {512, 1});
  args.b = at(0x200000, DType::kF8E4M3, {512, n}, {1, 512});
  args.c = at(0x30000, DType::kBf16, {rows, n}, {n, 1});
  args.has_scale_a = args.has_scale_b = args.block_scales = true;
  args.scale_a = std::move(scale_a);
  args.scale_b = std::move(scale_b);
  return args;
}

class BlockScalesTest : public MatmulPlanTest {
 protected:
  BlockScalesTest() { lt_.workspace = kMatmulWorkspaceBytes - kBlockScaleBytes; }
};

TEST_F(BlockScalesTest, FactorsThatLieAsCublasLtReadsThemStay) {
  const DeviceView of_a = At(0x40000, DType::kF32, {64, 4}, {1, 64});
  ASSERT_TRUE(lane_->Matmul(BlockScaled(of_a, At(0x50000, DType::kF32, {4, 3}, {1, 4}))).ok());
  ASSERT_TRUE(lane_->Matmul(BlockScaled(of_a, At(0x50000, DType::kF32, {4, 384}, {384, 1}))).ok());
  ASSERT_THAT(lt_.runs, SizeIs(2));
  ASSERT_THAT(lt_.asked, SizeIs(2));
  EXPECT_THAT(copies_, IsEmpty());
  for (size_t i : {0, 1}) {
    EXPECT_EQ(OfA(lt_.runs[i]), 0x40000u);
    EXPECT_EQ(OfB(lt_.runs[i]), 0x50000u);
    EXPECT_EQ(lt_.asked[i].y_scales, LtScale::kBlocks);
    EXPECT_FALSE(lt_.asked[i].fast_accumulation);
  }
  EXPECT_EQ(lt_.asked[0].x_scales, LtScale::kSquares);
  EXPECT_EQ(lt_.asked[1].x_scales, LtScale::kBlocks);
}

TEST_F(BlockScalesTest, OthersAreArrangedByAKernelFirst) {
  const DeviceView of_a = At(0x40000, DType::kF32, {64, 4}, {1, 64}),
                   of_b = At(0x50000, DType::kF32, {4, 3}, {1, 4});
  std::vector<MatmulArgs> products = {
      BlockScaled(At(0x40000, DType::kF32, {64, 4}), of_b),           // A's by rows
      BlockScaled(At(0x40000, DType::kF32, {64, 4}, {1, 80}), of_b),  // a slice of more rows
      BlockScaled(At(0x40004, DType::kF32, {64, 4}, {1, 64}), of_b),  // between multiples of 16 bytes
      BlockScaled(of_a, At(0x50000, DType::kF32, {4, 3})),            // B's by rows
      BlockScaled(of_a, At(0x50000, DType::kF32, {4, 3}, {1, 8})),    // another pitch
      BlockScaled(of_a, At(0x50000, DType::kF32, {4, 384}, {1, 4})),  // each column's by columns
      BlockScaled(of_a, At(0x50000, DType::kF32, {4, 4}, {1, 4}))};   // columns that begin within a block
  products.back().first_column = 70;
  for (size_t i = 0; i < products.size(); ++i) {
    EXPECT_FALSE(lane_->Matmul(products[i]).ok()) << "no GPU here: " << i;
    EXPECT_THAT(lt_.runs, IsEmpty()) << i;
  }
}

TEST_F(BlockScalesTest, WhatCublasLtCannotTakeHasItsReason) {
  const auto reason = [](const MatmulArgs& args) {
    std::string why = "taken";
    (void)MapToLt(args, args.a.extent[0], 16, &why);
    return why;
  };
  const auto product = [](int64_t rows, int64_t n) {
    return BlockScaled(At(0x40000, DType::kF32, {rows, 4}, {1, rows}),
                       At(0x50000, DType::kF32, {4, (n + 127) / 128}, {1, 4}), rows, n);
  };
  EXPECT_EQ(reason(product(64, 384)), "taken");
  EXPECT_THAT(reason(product(66, 384)), testing::HasSubstr("no multiple of 4"));
  EXPECT_THAT(reason(product(64, 130)), testing::HasSubstr("no multiple of 4"));
  MatmulArgs within = product(64, 256);
  within.scale_b = At(0x50000, DType::kF32, {4, 3}, {1, 4});
  within.first_column = 70;
  std::string why;
  const auto mapping = MapToLt(within, 64, 16, &why);
  ASSERT_TRUE(mapping.has_value()) << why;
  EXPECT_EQ(mapping->product.x_scales, LtScale::kBlocks) << "a factor for each column";
}

TEST(ScaleElementsTest, AreThoseThatCublasLtReads) {
  EXPECT_EQ(ScaleElements(LtScale::kNone, 64, 512), 0u);
  EXPECT_EQ(ScaleElements(LtScale::kTensor, 64, 512), 1u);
  EXPECT_EQ(ScaleElements(LtScale::kVector, 64, 512), 64u);
  EXPECT_EQ(ScaleElements(LtScale::kBlocks, 64, 513), 64u * 5);
  EXPECT_EQ(ScaleElements(LtScale::kSquares, 130, 513), 2u * 8) << "K to a multiple of four blocks";
}

// Split products whose parts are rounded to the output's type were 1 % off in bf16.
TEST(ReductionSchemesTest, PartsAreNeverRoundedToANarrowType) {
  LtProduct product;
  for (cudaDataType_t type : {CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}) {
    product.d.type = type;
    EXPECT_EQ(ReductionSchemes(product) &
                  (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE),
              0u);
    EXPECT_NE(ReductionSchemes(product) & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0u);
  }
  product.d.type = CUDA_R_32F;
  EXPECT_EQ(ReductionSchemes(product), static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK));
}

}  // namespace
}  // namespace tandem::cuda
