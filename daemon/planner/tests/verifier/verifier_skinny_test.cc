// Fused's skinny programs: when they are taken, their kernel's arguments, and that their steps are
// proven and right.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/families/builder.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

constexpr Op kSkinnyOps[] = {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce};

class SkinnyRows : public testing::TestWithParam<int> {
 protected:
  SkinnyRows() : group_(ReferenceSwitchGroup(GetParam())) { group_.fused_kernels = true; }

  // `rows` of each rank.
  OpRequest Request(Op op, int64_t rows, int64_t n, int64_t k, DType type = DType::kBf16) const {
    const int64_t all = rows * GetParam();
    OpRequest r;
    r.op = op;
    r.algorithm = Algorithm::kFused;
    r.fast_accumulation = true;
    r.operands = {MakeOperand(Role::kA, type, {op == Op::kAllGatherMatmul ? rows : all, k}),
                  MakeOperand(Role::kB, type, {k, n}),
                  MakeOperand(Role::kC, IsFloat8(type) ? DType::kBf16 : type,
                              {op == Op::kMatmulReduceScatter ? rows : all, n})};
    if (IsFloat8(type)) r.operands[1].spec.strides = {1, k};
    return r;
  }
  // The layout, or why there is none in why_.
  std::optional<SkinnyLayout> LayoutFor(const OpRequest& request) {
    const std::vector<OpRequest> requests(static_cast<size_t>(GetParam()), request);
    const Result<Problem> problem = MakeProblem(requests, group_);
    EXPECT_TRUE(problem.ok()) << problem.status().ToString();
    why_.clear();
    return SkinnyFor(*problem, &why_);
  }
  // The plan, proven for any queues and compared with the reference.
  OperationPlan Check(const OpRequest& request) {
    CheckOptions options;
    options.verify_queues = {0, 1, 2};
    options.interpret_queues = 0;
    OperationPlan plan;
    const std::string error = CheckRequests(std::vector<OpRequest>(static_cast<size_t>(GetParam()), request),
                                            group_, options, &plan);
    EXPECT_EQ(error, "") << OpName(request.op);
    return plan;
  }
  void ExpectOneKernel(const OperationPlan& plan, const SkinnyLayout& layout) {
    EXPECT_NE(plan.reason.find("skinny: one kernel moves and multiplies"), std::string::npos) << plan.reason;
    EXPECT_EQ(plan.lanes, 1);
    EXPECT_EQ(plan.bulk_bytes, 0u);
    EXPECT_EQ(plan.workspace_bytes, static_cast<uint64_t>(layout.area_bytes() + 255) / 256 * 256);
    ASSERT_EQ(plan.programs.size(), static_cast<size_t>(GetParam()));
    for (const RankProgram& program : plan.programs) {
      ASSERT_EQ(program.steps.size(), 1u);
      const auto& collective = std::get<CollectiveStep>(program.steps[0].work);
      ASSERT_TRUE(collective.skinny.has_value());
      EXPECT_GE(program.signal_count, collective.first_signal + layout.words());
      EXPECT_GE(program.signal_count, collective.signal_count);
      EXPECT_LE(program.signal_count, kSignalsPerWriter);
    }
  }

  GroupContext group_;
  std::string why_;
};

TEST_P(SkinnyRows, IsOneKernelOfAnyShape) {
  struct Shape {
    int64_t rows, n, k;
  };
  for (Op op : kSkinnyOps) {
    for (const Shape& shape : {Shape{1, 8, 8}, {5, 24, 16}, {33, 72, 8}, {16, 1000, 8}, {65, 16, 24}}) {
      const OpRequest r = Request(op, shape.rows, shape.n, shape.k);
      const auto layout = LayoutFor(r);
      ASSERT_TRUE(layout.has_value()) << why_;
      EXPECT_EQ(layout->rows, shape.rows);
      ExpectOneKernel(Check(r), *layout);
    }
  }
}

TEST_P(SkinnyRows, TakesTheKernelsTypes) {
  for (Op op : kSkinnyOps) {
    for (DType type : {DType::kBf16, DType::kF16, DType::kF8E4M3}) {
      for (bool columns : {false, true}) {
        OpRequest r = Request(op, 3, 16, 16, type);
        if (columns) r.operands[1].spec.strides = {1, 16};
        r.fast_accumulation = columns;
        const auto layout = LayoutFor(r);
        ASSERT_TRUE(layout.has_value()) << why_;
        ExpectOneKernel(Check(r), *layout);
      }
    }
  }
}

// Scales of A by tensor, of all rows, and of each rank's own that travel; bias and result scale; leading
// dimensions.
TEST_P(SkinnyRows, HasEveryEpilogue) {
  const int64_t world = GetParam();
  for (Op op : kSkinnyOps) {
    for (int64_t scaled : {int64_t{0}, int64_t{2}, 2 * world}) {
      if (scaled == 2 && op != Op::kAllGatherMatmul) continue;
      OpRequest r = Request(op, 2, 16, 16, DType::kF8E4M3);
      r.operands.push_back(
          MakeOperand(Role::kScaleA, DType::kF32,
                      scaled == 0 ? std::vector<int64_t>{1} : std::vector<int64_t>{scaled, 1}));
      r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32,
                                       scaled == 0 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 16}));
      r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {16}));
      r.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
      const auto layout = LayoutFor(r);
      if (op == Op::kAllGatherMatmul && scaled == 0) {
        EXPECT_FALSE(layout.has_value()) << "the kernel has one scale for all shards of A";
        continue;
      }
      ASSERT_TRUE(layout.has_value()) << why_;
      const OperationPlan plan = Check(r);
      ExpectOneKernel(plan, *layout);
      const SkinnyStep& kernel = *std::get<CollectiveStep>(plan.programs[1].steps[0].work).skinny;
      EXPECT_EQ(kernel.scales_travel, scaled == 2);
      EXPECT_EQ(Elements(kernel.matmul.scale_a), scaled == 0 ? 1 : scaled);
      EXPECT_TRUE(kernel.matmul.has_bias && kernel.matmul.has_result_scale && kernel.matmul.has_scale_b);
    }
  }
  OpRequest folded = Request(Op::kMatmulReduceScatter, 2, 16, 16);
  folded.operands[0].spec.shape = {world, 2, 16};
  folded.operands[2].spec.shape = {1, 2, 16};
  ASSERT_TRUE(LayoutFor(folded).has_value()) << why_;
  const OperationPlan plan = Check(folded);
  const SkinnyStep& kernel = *std::get<CollectiveStep>(plan.programs[0].steps[0].work).skinny;
  EXPECT_EQ(kernel.matmul.a.extent, (std::vector<int64_t>{2 * world, 16}));
  EXPECT_EQ(kernel.matmul.c.extent, (std::vector<int64_t>{2, 16}));
}

// Narrow tiles are tried first: where fewer CTAs find room, the same columns are cut into wider ones, or it
// is not taken.
TEST_P(SkinnyRows, FitsTheSmsThatTheGpusHave) {
  const OpRequest request = Request(Op::kAllGatherMatmul, 3, 24 * 128, 64);
  EXPECT_EQ(LayoutFor(request)->ctas(), 48);
  group_.kernel_sms = 28 + 4;
  EXPECT_EQ(LayoutFor(request)->ctas(), 24);
  const OperationPlan plan = Check(request);
  EXPECT_EQ(std::get<CollectiveStep>(plan.programs[0].steps[0].work).skinny->most_ctas, 28);
  group_.kernel_sms = 11 + 4;
  EXPECT_FALSE(LayoutFor(request).has_value());
  EXPECT_NE(why_.find("more tiles than"), std::string::npos) << why_;
}

TEST_P(SkinnyRows, IsNotTakenWithItsReason) {
  const Op gather = Op::kAllGatherMatmul;
  OpRequest two = Request(gather, 3, 16, 8);
  two.operands.push_back(two.operands[1]);
  two.operands.push_back(two.operands[2]);
  OpRequest returned = Request(gather, 3, 16, 8);
  returned.operands.push_back(MakeOperand(Role::kGatheredA, DType::kBf16, {3 * GetParam(), 8}));
  OpRequest to_float = Request(gather, 3, 16, 8);
  to_float.operands[2].spec.dtype = DType::kF32;
  const int64_t most = kMaxWorkspaceBytes / 8 / 2;  // elements of each of eight ranks
  for (const auto& [request, reason] :
       {std::pair(two, "several B"),
        {returned, "the gathered A is asked for"},
        {to_float, "no skinny kernel for bf16 and bf16 to f32"},
        {Request(gather, 3, 129 * 256, 8), "more tiles than the skinny kernel computes at once"},
        {Request(gather, 128 * 64 + 1, 8, 8), "more tiles than the skinny kernel computes at once"},
        {Request(gather, 16, 16, most), "does not fit into workspace"}}) {
    EXPECT_FALSE(LayoutFor(request).has_value()) << reason;
    EXPECT_NE(why_.find(reason), std::string::npos) << why_;
  }
  // Without it, fused has its other forms.
  for (const OpRequest& request : {two, returned, to_float}) {
    const OperationPlan plan = Check(request);
    for (const Step& step : plan.programs[0].steps) {
      if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        EXPECT_FALSE(collective->skinny.has_value());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SkinnyRows, testing::Values(2, 3, 4, 5, 8));

}  // namespace
}  // namespace tandem::plan
