// The fused algorithm's programs: proven, and their expansions right; what it refuses, and why.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

class Fused : public testing::TestWithParam<int> {
 protected:
  Fused() : group_(ReferenceSwitchGroup(GetParam())) { group_.fused_kernels = true; }

  // The plan, proven on `queues` and compared with the reference; empty programs and *error otherwise.
  OperationPlan Check(OpRequest request, std::vector<int> queues, std::string* error) {
    request.algorithm = Algorithm::kFused;
    std::vector<OpRequest> requests(static_cast<size_t>(GetParam()), request);
    CheckOptions options;
    options.verify_queues = std::move(queues);
    options.interpret_queues = 0;
    OperationPlan plan;
    *error = CheckRequests(requests, group_, options, &plan);
    return plan;
  }
  OpRequest Gather(DType dtype, int64_t shard, int64_t k, int64_t n) const {
    OpRequest r;
    r.op = Op::kAllGatherMatmul;
    r.fast_accumulation = true;
    r.operands = {MakeOperand(Role::kA, dtype, {shard, k}), MakeOperand(Role::kB, dtype, {k, n}),
                  MakeOperand(Role::kC, IsFloat8(dtype) ? DType::kBf16 : dtype, {shard * GetParam(), n})};
    return r;
  }
  OpRequest Scatter(DType dtype, int64_t rows, int64_t k, int64_t n) const {
    OpRequest r;
    r.op = Op::kMatmulReduceScatter;
    r.operands = {MakeOperand(Role::kA, dtype, {rows * GetParam(), k}), MakeOperand(Role::kB, dtype, {k, n}),
                  MakeOperand(Role::kC, dtype, {rows, n})};
    return r;
  }

  OpRequest AllReduce(DType dtype, int64_t rows, int64_t k, int64_t n, bool symmetric) const {
    OpRequest r;
    r.op = Op::kMatmulAllReduce;
    r.operands = {MakeOperand(Role::kA, dtype, {rows * GetParam(), k}), MakeOperand(Role::kB, dtype, {k, n}),
                  MakeOperand(Role::kC, dtype, {rows * GetParam(), n}, symmetric)};
    return r;
  }

  GroupContext group_;
  std::string error_;
};

TEST_P(Fused, GathersForSeveralBs) {
  OpRequest r = Gather(DType::kBf16, 3, 8, 16);
  r.operands.push_back(MakeOperand(Role::kB, DType::kBf16, {8, 24}, false, {1, 8}));
  r.operands.push_back(MakeOperand(Role::kC, DType::kBf16, {3 * GetParam(), 24}));
  OperationPlan plan = Check(r, {0, 1, 2}, &error_);
  ASSERT_EQ(error_, "");
  int kernels = 0;
  for (const Step& step : plan.programs[0].steps)
    kernels += std::holds_alternative<CollectiveStep>(step.work);
  EXPECT_EQ(kernels, 2);  // one a B
}

// A kernel that goes first waits for pushes that its peers' other lanes make meanwhile: two queues at least.
TEST_P(Fused, GathersBehindItsKernelWhereTheOwnShardTakesNearlyAllSms) {
  if (GetParam() > 2) GTEST_SKIP() << "the same for any number, and long";
  for (bool large : {false, true}) {
    OpRequest r = Gather(DType::kBf16, 1, 8, (large ? 96 : 95) * 256);
    r.operands[2].spec.dtype = DType::kF32;  // no skinny kernel
    OperationPlan plan = Check(r, large ? std::vector<int>{0, 2} : std::vector<int>{0, 1, 2}, &error_);
    ASSERT_EQ(error_, "") << large;
    EXPECT_EQ(std::holds_alternative<CollectiveStep>(plan.programs[0].steps[0].work), large);
    if (!large) continue;
    Check(r, {1}, &error_);
    EXPECT_NE(error_.find("DEADLOCK"), std::string::npos) << error_;
  }
}

TEST_P(Fused, ReturnsTheGatheredA) {
  for (bool symmetric : {false, true}) {
    OpRequest r = Gather(DType::kBf16, 2, 8, 8);
    r.operands.push_back(MakeOperand(Role::kGatheredA, DType::kBf16, {2 * GetParam(), 8}, symmetric));
    Check(r, {0, 1, 2}, &error_);
    EXPECT_EQ(error_, "") << symmetric;
  }
}

TEST_P(Fused, GathersFloat8WithRowScales) {
  const int64_t rows = 4 * GetParam();
  for (bool sharded : {false, true}) {
    OpRequest r = Gather(DType::kF8E4M3, 4, 16, 8);
    r.operands[1].spec.strides = {1, 16};
    r.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, {sharded ? 4 : rows, 1}));
    r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {1, 8}));
    r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {8}));
    Check(r, {0, 1, 2}, &error_);
    EXPECT_EQ(error_, "") << sharded;
  }
}

TEST_P(Fused, TakesScalesByBlocks) {
  const int64_t k = 144, n = 8;
  const auto scaled = [&](OpRequest r, int64_t rows) {
    r.operands[0].spec.dtype = r.operands[1].spec.dtype = DType::kF8E4M3;
    r.operands[1].spec.strides = {1, k};
    r.operands[2].spec.dtype = DType::kBf16;
    r.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, {rows, 2}, false, {1, rows}));
    r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {2, 1}, false, {1, 4}));
    return r;
  };
  const int64_t rows = 4 * GetParam();
  for (bool sharded : {false, true}) {
    Check(scaled(Gather(DType::kF8E4M3, 4, k, n), sharded ? 4 : rows), {0, 1, 2}, &error_);
    EXPECT_EQ(error_, "") << sharded;
  }
  Check(scaled(Scatter(DType::kF8E4M3, 4, k, n), rows), {0, 1, 2}, &error_);
  EXPECT_EQ(error_, "");
  Check(scaled(AllReduce(DType::kF8E4M3, 4, k, n, false), rows), {0, 1, 2}, &error_);
  EXPECT_EQ(error_, "");
  // Products without a kernel, and shards' scales that arrive in another layout than the own ones.
  OpRequest wide = scaled(Gather(DType::kF8E4M3, 4, k, n), 4);
  wide.operands[2].spec.dtype = DType::kF32;
  Check(wide, {0}, &error_);
  EXPECT_NE(error_.find("no kernel for scales by blocks of f8e4m3 and f8e4m3 to f32"), std::string::npos)
      << error_;
  OpRequest apart = scaled(Gather(DType::kF8E4M3, 4, k, n), 4);
  apart.operands[3].spec.strides = {1, 6};
  Check(apart, {0}, &error_);
  EXPECT_NE(error_.find("A's scales are not packed"), std::string::npos) << error_;
  OpRequest each = scaled(Gather(DType::kF8E4M3, 4, k, n), 4);
  each.operands[4].spec = {DType::kF32, {2, n}, {}};
  Check(each, {0}, &error_);
  EXPECT_NE(error_.find("blocks of 128 columns"), std::string::npos) << error_;
}

TEST_P(Fused, TakesFloat8OfEitherTypeAndEitherAccumulation) {
  using enum DType;
  for (auto [a, b] :
       {std::pair(kF8E4M3, kF8E4M3), {kF8E4M3, kF8E5M2}, {kF8E5M2, kF8E4M3}, {kF8E5M2, kF8E5M2}}) {
    for (bool fast : {false, true}) {
      OpRequest gather = Gather(a, 4, 16, 8), scatter = Scatter(a, 4, 16, 8);
      for (OpRequest* r : {&gather, &scatter}) {
        r->operands[1].spec.dtype = b;
        r->operands[1].spec.strides = {1, 16};
        r->operands[2].spec.dtype = kBf16;
        r->fast_accumulation = fast;
        Check(*r, {0}, &error_);
        EXPECT_EQ(error_, "") << OpName(r->op) << " " << DTypeName(a) << " " << DTypeName(b) << " " << fast;
      }
    }
  }
}

// One kernel on one lane where one wave of tiles suffices, else beside a kernel that meets the peers. The
// peers' kernels store the words that it waits for. In f32, which has no skinny kernel.
TEST_P(Fused, Scatters) {
  OpRequest r = Scatter(DType::kBf16, 3, 8, 16);
  r.operands[2].spec.dtype = DType::kF32;
  r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {16}));
  r.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
  OperationPlan plan = Check(r, {0, 1, 2}, &error_);
  ASSERT_EQ(error_, "");
  EXPECT_TRUE(plan.deterministic);
  EXPECT_EQ(plan.lanes, 1);
  EXPECT_EQ(plan.programs[0].steps.size(), 1u);

  const int64_t columns = (132 / GetParam() + 1) * 256;
  r.operands[1].spec.shape = {8, columns};
  r.operands[0].spec.shape = {GetParam(), 8};
  r.operands[2].spec.shape = {1, columns};
  r.operands.resize(3);
  plan = Check(r, {0, 1, 2}, &error_);
  ASSERT_EQ(error_, "");
  EXPECT_EQ(plan.lanes, 2);
}

// In the bulk area, a kernel of more than a wave starts before its peers have entered, and delivers nothing
// before. Proven, not computed.
TEST_P(Fused, MeetsPeersBesideItsKernel) {
  constexpr int64_t kRows = 2048;
  for (OpRequest r : {Scatter(DType::kBf16, kRows, 8, 8192), AllReduce(DType::kBf16, kRows, 8, 8192, true),
                      AllReduce(DType::kBf16, kRows, 8, 8192, false)}) {
    r.algorithm = Algorithm::kFused;
    CheckOptions options;
    options.seeds = {};
    options.verify_queues = {0, 1, 2};
    OperationPlan plan;
    ASSERT_EQ(
        CheckRequests(std::vector<OpRequest>(static_cast<size_t>(GetParam()), r), group_, options, &plan),
        "");
    EXPECT_EQ(plan.lanes, 2);
    const RankProgram& program = plan.programs[0];
    const auto kernel = std::find_if(program.steps.begin(), program.steps.end(), [](const Step& step) {
      return std::holds_alternative<CollectiveStep>(step.work);
    });
    ASSERT_NE(kernel, program.steps.end());
    EXPECT_EQ(kernel->lane, 0);
    EXPECT_TRUE(kernel->deps.empty()) << "it waits for nobody to start";
    const auto& parts = std::get<CollectiveStep>(kernel->work).expansion;
    const auto wait = std::find_if(parts.begin(), parts.end(), [](const Step& step) {
      return std::holds_alternative<WaitStep>(step.work);
    });
    const auto copy = std::find_if(parts.begin(), parts.end(), [](const Step& step) {
      return std::holds_alternative<CopyStep>(step.work);
    });
    ASSERT_NE(wait, parts.end());
    EXPECT_LT(wait, copy);
    EXPECT_EQ(std::get<WaitStep>(wait->work).from_rank, 0) << "the own lane's word";
  }
}

// One kernel on one lane.
TEST_P(Fused, AllReduces) {
  for (bool symmetric : {false, true}) {
    for (int64_t rows : {3, 1024, 2048}) {
      if (rows * GetParam() > 4096) continue;
      OpRequest r = AllReduce(DType::kBf16, rows, 8, 8, symmetric);
      r.operands[2].spec.dtype = DType::kF32;
      r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {8}));
      r.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
      OperationPlan plan = Check(r, {0, 1, 2}, &error_);
      ASSERT_EQ(error_, "") << rows << " " << symmetric;
      EXPECT_EQ(plan.lanes, 1);
      EXPECT_EQ(plan.steps, GetParam()) << rows;
      EXPECT_TRUE(plan.deterministic);
      EXPECT_EQ(plan.roundings, 1);
    }
  }
}

TEST_P(Fused, AllReducesMoreThanAWave) {
  for (bool symmetric : {false, true}) {
    OpRequest r = AllReduce(DType::kBf16, 1, 8, (132 / GetParam() + 1) * 256, symmetric);
    r.operands[2].spec.dtype = DType::kF32;
    OperationPlan plan = Check(r, {0, 1, 2, 3}, &error_);
    ASSERT_EQ(error_, "") << symmetric;
    EXPECT_EQ(plan.lanes, 2);
  }
}

// Leading dimensions are rows like others; fp8 with a scale for each row; all in the bulk area.
TEST_P(Fused, AllReducesFoldedRows) {
  OpRequest r;
  r.op = Op::kMatmulAllReduce;
  r.fast_accumulation = true;
  const int64_t world = GetParam();
  r.operands = {MakeOperand(Role::kA, DType::kF8E4M3, {2, world, 16}),
                MakeOperand(Role::kB, DType::kF8E4M3, {16, 8}, false, {1, 16}),
                MakeOperand(Role::kC, DType::kBf16, {2, world, 8}),
                MakeOperand(Role::kScaleA, DType::kF32, {2, world, 1}),
                MakeOperand(Role::kScaleB, DType::kF32, {1, 8})};
  OpRequest padded = AllReduce(DType::kBf16, 2, 8, 8, false);
  padded.operands[2].spec.strides = {24, 1};
  for (DType out : {DType::kF16, DType::kBf16, DType::kF32}) {
    r.operands[2].spec.dtype = out;
    Check(r, {0, 2}, &error_);
    EXPECT_EQ(error_, "") << DTypeName(out);
    if (out == DType::kF16) continue;
    padded.operands[2].spec.dtype = out;
    Check(padded, {0, 2}, &error_);
    EXPECT_EQ(error_, "") << DTypeName(out);
  }
}

// Half in and out, and sums that are never rounded but once: C is f32.
TEST_P(Fused, TakesHalfAndFloatSums) {
  for (DType dtype : {DType::kF16, DType::kBf16}) {
    for (DType out : {dtype, DType::kF32}) {
      for (OpRequest r :
           {Gather(dtype, 3, 8, 16), Scatter(dtype, 3, 8, 16), AllReduce(dtype, 3, 8, 16, false)}) {
        r.operands[2].spec.dtype = out;
        OperationPlan plan = Check(r, {0, 2}, &error_);
        ASSERT_EQ(error_, "") << OpName(r.op) << " " << DTypeName(dtype) << " to " << DTypeName(out);
        if (r.op == Op::kAllGatherMatmul) continue;
        EXPECT_EQ(plan.wire_type, DTypeName(out));
        EXPECT_EQ(plan.roundings, out == DType::kF32 ? 1 : 2);
      }
    }
  }
}

// A leading dimension of one element is none: the pieces are rows of the second.
TEST_P(Fused, CutsTheFirstDimensionOfSeveralElements) {
  for (DType out : {DType::kBf16, DType::kF32}) {  // for few rows, and by tiles
    for (OpRequest r : {Gather(DType::kBf16, 3, 8, 16), Scatter(DType::kBf16, 3, 8, 16),
                        AllReduce(DType::kBf16, 3, 8, 16, false)}) {
      r.dim = 1;
      r.operands[2].spec.dtype = out;
      r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {16}));
      for (int slot : {0, 2}) r.operands[slot].spec.shape.insert(r.operands[slot].spec.shape.begin(), 1);
      Check(r, {0, 2}, &error_);
      EXPECT_EQ(error_, "") << OpName(r.op) << " to " << DTypeName(out);
    }
  }
}

TEST_P(Fused, RefusesWithItsReason) {
  struct Refusal {
    OpRequest request;
    std::string reason;
  };
  OpRequest strided = Gather(DType::kBf16, 4, 16, 8);
  strided.operands[0].spec.strides = {1, 4};
  OpRequest along_k = Gather(DType::kBf16, 4, 16, 8);
  along_k.dim = 1;
  along_k.operands[1].spec = {DType::kBf16, {16 * GetParam(), 8}, {8, 1}};
  along_k.operands[2].spec = {DType::kBf16, {4, 8}, {8, 1}};
  OpRequest exact = Scatter(DType::kBf16, 4, 16, 8);
  exact.wire = WireType::kF32;
  OpRequest to_float8 = Gather(DType::kF8E5M2, 4, 16, 8);
  to_float8.operands[2].spec.dtype = DType::kF8E5M2;
  OpRequest exact_sum = AllReduce(DType::kBf16, 4, 16, 8, false);
  exact_sum.wire = WireType::kF32;
  OpRequest scales = Gather(DType::kF8E4M3, 4, 16, 8);
  scales.operands[1].spec.strides = {1, 16};
  scales.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, {4, 1}, false, {2, 1}));
  scales.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {1}));
  scales.fast_accumulation = true;
  OpRequest expanded = Gather(DType::kBf16, 4, 16, 8), sliding = expanded, b_columns = expanded;
  expanded.operands[0].spec.strides = {0, 1};
  sliding.operands[0].spec.strides = {8, 1};
  b_columns.operands[1].spec.strides = {1, 8};
  OpRequest b_pitch = Gather(DType::kBf16, 4, 16, 9);
  b_pitch.operands[2].spec.strides = {16, 1};
  for (const Refusal& refusal :
       {Refusal{Gather(DType::kBf16, 4, 12, 8), "K is no multiple of 16 bytes"},
        Refusal{Gather(DType::kF32, 4, 16, 8), "no kernel for f32"},
        Refusal{to_float8, "no kernel for f8e5m2 to f8e5m2"},
        Refusal{Gather(DType::kF8E4M3, 4, 16, 8), "float8 needs contiguous columns of B"},
        Refusal{expanded, "A's rows overlap"}, Refusal{sliding, "A's rows overlap"},
        Refusal{b_columns, "B's columns overlap"}, Refusal{strided, "A's rows are not contiguous"},
        Refusal{along_k, "the dimension must be the first"},
        Refusal{exact, "partial sums travel in another type"},
        Refusal{exact_sum, "partial sums travel in another type"},
        Refusal{scales, "A's scales are not contiguous"},
        Refusal{b_pitch, "B's pitch is no multiple of 16 bytes"}}) {
    Check(refusal.request, {0}, &error_);
    EXPECT_NE(error_.find(refusal.reason), std::string::npos) << refusal.reason << ": " << error_;
  }
  // The kernel's tiles of rows: one of 128 for each rank's part too many.
  const int64_t most = 32767 / GetParam() * 128;
  for (const int64_t rows : {most, most + 1}) {
    for (OpRequest request : {Gather(DType::kBf16, rows, 16, 8), Scatter(DType::kBf16, rows, 16, 8),
                              AllReduce(DType::kBf16, rows, 16, 8, false)}) {
      request.algorithm = Algorithm::kFused;
      auto plan = MakePlan(std::vector<OpRequest>(static_cast<size_t>(GetParam()), request), group_);
      const std::string said = plan.status().ToString();
      EXPECT_EQ(plan.ok(), rows == most) << rows << ": " << said;
      EXPECT_EQ(said.find("more than 32767 tiles") == std::string::npos, rows == most) << said;
    }
  }
  group_.fused_kernels = false;
  Check(Gather(DType::kBf16, 4, 16, 8), {0}, &error_);
  EXPECT_NE(error_.find("needs the CUDA backend's fused kernels"), std::string::npos) << error_;
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Fused, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace tandem::plan
