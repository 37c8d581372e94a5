// Products of few rows beside one kernel for the whole collective: proven, right, and with the kernel that
// their size wants.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

class SmallMatmul : public testing::TestWithParam<int> {
 protected:
  SmallMatmul() : group_(ReferenceSwitchGroup(GetParam())) { group_.packet_kernels = true; }

  OperationPlan Check(OpRequest request, std::string* error) {
    request.algorithm = Algorithm::kLowLatency;
    std::vector<OpRequest> requests(static_cast<size_t>(GetParam()), request);
    CheckOptions options;
    options.verify_queues = {0, 1, 2};
    options.interpret_queues = 1;
    OperationPlan plan;
    *error = CheckRequests(requests, group_, options, &plan);
    return plan;
  }
  OpRequest Request(Op op, DType type, DType out, int64_t rows, int64_t k, int64_t n) const {
    const int64_t all = rows * GetParam();
    OpRequest r;
    r.op = op;
    r.operands = {MakeOperand(Role::kA, type, {op == Op::kAllGatherMatmul ? rows : all, k}),
                  MakeOperand(Role::kB, type, {k, n}),
                  MakeOperand(Role::kC, out, {op == Op::kMatmulReduceScatter ? rows : all, n})};
    return r;
  }
  // The collective of rank 0's program.
  static const CollectiveStep* Kernel(const OperationPlan& plan) {
    for (const Step& step : plan.programs[0].steps) {
      if (auto* collective = std::get_if<CollectiveStep>(&step.work)) return collective;
    }
    return nullptr;
  }

  static constexpr Op kOps[] = {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce};
  GroupContext group_;
  std::string error_;
};

TEST_P(SmallMatmul, IsRightInEveryType) {
  for (Op op : kOps) {
    for (auto [type, out] :
         {std::pair{DType::kBf16, DType::kBf16}, {DType::kF16, DType::kF32}, {DType::kF32, DType::kF32}}) {
      for (int64_t rows : {1, 3}) {
        for (bool epilogue : {false, true}) {
          OpRequest r = Request(op, type, out, rows, 8, 16);
          if (epilogue) r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {16}));
          if (epilogue) r.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
          const OperationPlan plan = Check(r, &error_);
          ASSERT_EQ(error_, "") << OpName(op) << " " << DTypeName(type) << " rows " << rows;
          EXPECT_FALSE(plan.fused);
          const CollectiveStep* kernel = Kernel(plan);
          ASSERT_NE(kernel, nullptr);
          EXPECT_TRUE(kernel->algorithm == Algorithm::kLowLatency ||
                      kernel->algorithm == Algorithm::kOneShot);
          EXPECT_GT(kernel->blocks, 0) << OpName(op) << " has no kernel";
        }
      }
    }
  }
}

TEST_P(SmallMatmul, AveragesReturnsTheGatheredAAndTakesStrides) {
  OpRequest r = Request(Op::kMatmulReduceScatter, DType::kBf16, DType::kBf16, 2, 8, 8);
  r.reduce_op = ReduceOp::kAvg;
  r.wire = WireType::kF32;
  OperationPlan plan = Check(r, &error_);
  EXPECT_EQ(error_, "");
  EXPECT_EQ(plan.roundings, 1);
  r = Request(Op::kMatmulAllReduce, DType::kBf16, DType::kBf16, 2, 8, 8);
  r.operands[2].spec.strides = {12, 1};
  Check(r, &error_);
  EXPECT_EQ(error_, "");
  for (bool symmetric : {false, true}) {
    r = Request(Op::kAllGatherMatmul, DType::kBf16, DType::kBf16, 2, 8, 8);
    r.operands.push_back(MakeOperand(Role::kGatheredA, DType::kBf16, {2 * GetParam(), 8}, symmetric));
    r.operands.push_back(MakeOperand(Role::kB, DType::kBf16, {8, 4}));
    r.operands.push_back(MakeOperand(Role::kC, DType::kBf16, {2 * GetParam(), 4}));
    Check(r, &error_);
    EXPECT_EQ(error_, "") << symmetric;
  }
}

// A leading dimension of one element is none.
TEST_P(SmallMatmul, CutsTheFirstDimensionOfSeveralElements) {
  for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    OpRequest r = Request(op, DType::kBf16, DType::kBf16, 2, 8, 8);
    r.dim = 1;
    for (int slot : {0, 2}) r.operands[slot].spec.shape.insert(r.operands[slot].spec.shape.begin(), 1);
    Check(r, &error_);
    EXPECT_EQ(error_, "") << OpName(op);
  }
}

// Packets while they fit; then the kernels with flags of their own.
TEST_P(SmallMatmul, TakesTheKernelOfItsSize) {
  group_.topology = ReferenceSwitchGroup(GetParam()).topology;
  const auto kernel_of = [this](Op op, int64_t all_rows, int64_t k, int64_t n) {
    OpRequest r = Request(op, DType::kBf16, DType::kBf16, all_rows / GetParam(), k, n);
    r.algorithm = Algorithm::kLowLatency;
    auto plan = MakePlan(std::vector<OpRequest>(static_cast<size_t>(GetParam()), r), group_);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    const CollectiveStep* kernel = plan.ok() ? Kernel(*plan) : nullptr;
    EXPECT_TRUE(kernel != nullptr && kernel->blocks > 0);
    return kernel == nullptr ? Algorithm::kAuto : kernel->algorithm;
  };
  EXPECT_EQ(kernel_of(Op::kAllGatherMatmul, 24, 512, 64), Algorithm::kLowLatency);
  EXPECT_EQ(kernel_of(Op::kAllGatherMatmul, 480, 4096, 64), Algorithm::kSm);
  EXPECT_EQ(kernel_of(Op::kMatmulReduceScatter, 24, 64, 512), Algorithm::kLowLatency);
  EXPECT_EQ(kernel_of(Op::kMatmulReduceScatter, 480, 64, 4096), Algorithm::kSm);
  EXPECT_EQ(kernel_of(Op::kMatmulAllReduce, 24, 64, 256), Algorithm::kLowLatency);
  EXPECT_EQ(kernel_of(Op::kMatmulAllReduce, 480, 64, 4096), Algorithm::kTwoShot);
}

TEST_P(SmallMatmul, RefusesWithItsReason) {
  OpRequest along_k = Request(Op::kAllGatherMatmul, DType::kBf16, DType::kBf16, 4, 16, 8);
  along_k.dim = 1;
  along_k.operands[1].spec = {DType::kBf16, {16 * GetParam(), 8}, {8, 1}};
  along_k.operands[2].spec = {DType::kBf16, {4, 8}, {8, 1}};
  OpRequest strided = Request(Op::kAllGatherMatmul, DType::kBf16, DType::kBf16, 4, 16, 8);
  strided.operands[0].spec.strides = {20, 1};
  OpRequest strict = Request(Op::kMatmulAllReduce, DType::kBf16, DType::kBf16, 4, 16, 8);
  strict.on_unfused = OnUnfused::kError;
  const std::pair<OpRequest, std::string> refusals[] = {
      {along_k, "the dimension must be the first"},
      {strided, "A must be contiguous"},
      {strict, "low_latency was asked for while on_unfused is error"},
      {Request(Op::kMatmulReduceScatter, DType::kBf16, DType::kBf16, 512, 8, 8192),
       "is above its bound of 8 MiB"}};
  for (const auto& [request, reason] : refusals) {
    Check(request, &error_);
    EXPECT_NE(error_.find(reason), std::string::npos) << reason << ": " << error_;
  }
  group_.packet_kernels = false;
  Check(Request(Op::kMatmulAllReduce, DType::kBf16, DType::kBf16, 4, 16, 8), &error_);
  EXPECT_NE(error_.find("needs the CUDA backend's kernels"), std::string::npos) << error_;
}

// An algorithm without a measurement is not chosen.
TEST_P(SmallMatmul, IsOnlyRunWhenAskedForOffNvSwitches) {
  for (GpuInfo& gpu : group_.topology.gpus) gpu.switch_links = 0;
  const OpRequest r = Request(Op::kMatmulAllReduce, DType::kBf16, DType::kBf16, 4, 16, 8);
  auto plan = MakePlan(std::vector<OpRequest>(static_cast<size_t>(GetParam()), r), group_);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_NE(plan->algorithm, Algorithm::kLowLatency);
  for (const RefusedAlgorithm& refused : plan->refused) {
    if (refused.algorithm != Algorithm::kLowLatency) continue;
    EXPECT_NE(refused.reason.find("when it is asked for"), std::string::npos) << refused.reason;
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SmallMatmul, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace tandem::plan
