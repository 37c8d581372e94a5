// The native algorithm's programs: proven, and their expansions right; what it refuses, and why.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/choice.h"
#include "daemon/planner/tests/reference_cases.h"
#include "daemon/planner/tests/reference_ops.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

Operand Make(Role role, DType dtype, Shape shape, bool symmetric = false, Shape stride = {}) {
  Operand operand;
  operand.role = role;
  operand.spec = {dtype, shape, stride.empty() ? ContiguousStrides(shape) : stride};
  operand.symmetric = symmetric;
  return operand;
}

class Native : public testing::TestWithParam<int> {
 protected:
  Native() : group_(ReferenceSwitchGroup(GetParam())) { group_.native_kernels = true; }

  // The plan, proven on `queues` and compared with the reference; empty programs and *error otherwise.
  Plan Check(OpRequest request, std::vector<int> queues, std::string* error) {
    request.algorithm = Algorithm::kNative;
    std::vector<OpRequest> requests(static_cast<size_t>(GetParam()), request);
    CheckOptions options;
    options.verify_queues = std::move(queues);
    options.interpret_queues = 0;
    Plan plan;
    *error = CheckRequests(requests, group_, options, &plan);
    return plan;
  }
  OpRequest Gather(DType dtype, int64_t shard, int64_t k, int64_t n) const {
    OpRequest r;
    r.op = Op::kAllGatherMatmul;
    r.fast_accumulation = true;
    r.operands = {Make(Role::kA, dtype, {shard, k}), Make(Role::kB, dtype, {k, n}),
                  Make(Role::kC, IsFloat8(dtype) ? DType::kBf16 : dtype, {shard * GetParam(), n})};
    return r;
  }
  OpRequest Scatter(DType dtype, int64_t rows, int64_t k, int64_t n) const {
    OpRequest r;
    r.op = Op::kMatmulReduceScatter;
    r.operands = {Make(Role::kA, dtype, {rows * GetParam(), k}), Make(Role::kB, dtype, {k, n}),
                  Make(Role::kC, dtype, {rows, n})};
    return r;
  }

  GroupContext group_;
  std::string error_;
};

TEST_P(Native, GathersForSeveralBs) {
  OpRequest r = Gather(DType::kBf16, 3, 8, 16);
  r.operands.push_back(Make(Role::kB, DType::kBf16, {8, 24}, false, {1, 8}));
  r.operands.push_back(Make(Role::kC, DType::kBf16, {3 * GetParam(), 24}));
  Plan plan = Check(r, {0, 1, 2}, &error_);
  ASSERT_EQ(error_, "");
  int kernels = 0;
  for (const Step& step : plan.programs[0].steps)
    kernels += std::holds_alternative<CollectiveStep>(step.work);
  EXPECT_EQ(kernels, 2);  // one a B
}

TEST_P(Native, ReturnsTheGatheredA) {
  for (bool symmetric : {false, true}) {
    OpRequest r = Gather(DType::kBf16, 2, 8, 8);
    r.operands.push_back(Make(Role::kGatheredA, DType::kBf16, {2 * GetParam(), 8}, symmetric));
    Check(r, {0, 1, 2}, &error_);
    EXPECT_EQ(error_, "") << symmetric;
  }
}

TEST_P(Native, GathersFloat8WithRowScales) {
  const int64_t rows = 4 * GetParam();
  for (bool sharded : {false, true}) {
    OpRequest r = Gather(DType::kF8E4M3, 4, 16, 8);
    r.operands[1].spec.strides = {1, 16};
    r.operands.push_back(Make(Role::kScaleA, DType::kF32, {sharded ? 4 : rows, 1}));
    r.operands.push_back(Make(Role::kScaleB, DType::kF32, {1, 8}));
    r.operands.push_back(Make(Role::kBias, DType::kF32, {8}));
    Check(r, {0, 1, 2}, &error_);
    EXPECT_EQ(error_, "") << sharded;
  }
}

// The kernel that sums waits for pushes that its peers' lanes make while their kernels run: two queues at
// least.
TEST_P(Native, Scatters) {
  OpRequest r = Scatter(DType::kBf16, 3, 8, 16);
  r.operands.push_back(Make(Role::kBias, DType::kBf16, {16}));
  r.operands.push_back(Make(Role::kResultScale, DType::kF32, {1}));
  Plan plan = Check(r, {0, 2}, &error_);
  ASSERT_EQ(error_, "");
  EXPECT_TRUE(plan.deterministic);
  Check(r, {1}, &error_);
  EXPECT_NE(error_.find("DEADLOCK"), std::string::npos) << error_;
}

TEST_P(Native, RefusesWithItsReason) {
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
  OpRequest b_pitch = Gather(DType::kBf16, 4, 16, 9);
  b_pitch.operands[2].spec.strides = {16, 1};
  for (const Refusal& refusal :
       {Refusal{Gather(DType::kBf16, 4, 12, 8), "K is no multiple of 16 bytes"},
        Refusal{Gather(DType::kF32, 4, 16, 8), "no kernel for f32"},
        Refusal{Gather(DType::kF16, 4, 16, 8), "no kernel for f16"},
        Refusal{Gather(DType::kF8E4M3, 4, 16, 8), "float8 needs contiguous columns of B"},
        Refusal{strided, "A's rows are not contiguous"}, Refusal{along_k, "the dimension must be the first"},
        Refusal{exact, "partial sums travel in another type"},
        Refusal{b_pitch, "B's pitch is no multiple of 16 bytes"}}) {
    Check(refusal.request, {0}, &error_);
    EXPECT_NE(error_.find(refusal.reason), std::string::npos) << refusal.reason << ": " << error_;
  }
  group_.native_kernels = false;
  Check(Gather(DType::kBf16, 4, 16, 8), {0}, &error_);
  EXPECT_NE(error_.find("needs the CUDA backend's native kernels"), std::string::npos) << error_;
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Native, testing::Values(2, 3, 4, 8));

}  // namespace
}  // namespace tandem::plan
