// What plans keep of determinism, what is left out for it, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;

OpRequest WithDeterminism(OpRequest request, Determinism level) {
  request.determinism = level;
  return request;
}

OpRequest WithNorm(int64_t rows, int64_t columns) {
  const auto like = [&](Role role) { return Tensor(role, DType::kBf16, {rows, columns}); };
  OpRequest request = Request(Op::kAllReduce, {like(Role::kInput), like(Role::kOutput),
                                               Tensor(Role::kNormWeight, DType::kBf16, {columns})});
  request.norm_epsilon = 1e-5f;
  return request;
}

constexpr int64_t kLarge = int64_t{64} << 20;  // NCCL's without a promise

TEST(DeterminismChoice, LeavesOutNcclsSumsAndNamesTheReason) {
  ASSERT_EQ(MustPlan(AllReduce(kLarge), SwitchGroup(4)).algorithm, Algorithm::kNccl);
  for (const Determinism level : {Determinism::kRun, Determinism::kBatch}) {
    const OperationPlan plan = MustPlan(WithDeterminism(AllReduce(kLarge), level), SwitchGroup(4));
    EXPECT_EQ(plan.algorithm, Algorithm::kTwoShot);
    EXPECT_EQ(plan.determinism, level);
    EXPECT_TRUE(plan.deterministic);
    EXPECT_EQ(plan.reduction_order, "rank order, fp32");
    EXPECT_THAT(plan.reason, HasSubstr("NCCL promises no order of a sum"));
    EXPECT_THAT(ReasonAgainst(plan, Algorithm::kNccl), HasSubstr("NCCL promises no order of a sum"));
    OpRequest asked = WithDeterminism(AllReduce(kLarge), level);
    asked.algorithm = Algorithm::kNccl;
    const Status refused = PlanOf(asked, SwitchGroup(4)).status();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("NCCL promises no order of a sum"));
  }
}

TEST(DeterminismChoice, TakesNcclForIntegersAndMoves) {
  const OperationPlan sum =
      MustPlan(WithDeterminism(AllReduce(kLarge, DType::kI32), Determinism::kBatch), SwitchGroup(4));
  EXPECT_EQ(sum.algorithm, Algorithm::kNccl);
  EXPECT_TRUE(sum.deterministic);
  OpRequest moved = Request(Op::kBroadcast, {Tensor(Role::kInput, DType::kF32, {kLarge}),
                                             Tensor(Role::kOutput, DType::kF32, {kLarge})});
  EXPECT_EQ(MustPlan(WithDeterminism(moved, Determinism::kBatch), SwitchGroup(4)).algorithm,
            Algorithm::kNccl);
}

TEST(DeterminismChoice, LeavesOutTheHybridCubeMeshForABatchOnly) {
  GroupContext mesh = MeshGroup();
  EXPECT_EQ(MustPlan(WithDeterminism(AllReduce(1024), Determinism::kRun), mesh).algorithm,
            Algorithm::kHybridCubeMesh);
  // A DGX-1 has no access between all pairs, which every other sum of Tandem's needs.
  const Status refused = PlanOf(WithDeterminism(AllReduce(1024), Determinism::kBatch), mesh).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("it adds within quads first"));
  EXPECT_THAT(refused.message(), HasSubstr("have no peer access"));
}

std::vector<MatmulStep> ProductsOf(const OperationPlan& plan) {
  std::vector<MatmulStep> products;
  for (const RankProgram& program : plan.programs) {
    for (const Step& step : ExpandedSteps(program)) {
      if (const auto* matmul = std::get_if<MatmulStep>(&step.work)) products.push_back(*matmul);
    }
    for (const Step& step : program.steps) {
      const auto* collective = std::get_if<CollectiveStep>(&step.work);
      if (collective != nullptr && collective->skinny) products.push_back(collective->skinny->matmul);
    }
  }
  return products;
}

TEST(DeterminismChoice, FixesTheOrderOfProductsForABatchOnly) {
  for (const OpRequest& product :
       {MatmulAllReduce(64, 64, 64, DType::kBf16), MatmulScatter(4, 64, 64, 64, 0, DType::kBf16),
        GatherMatmul(4, 64, 64, 64, 0, DType::kBf16)}) {
    for (const GroupContext& group : {SwitchGroup(4), HopperGroup(4)}) {
      for (const Determinism level : {Determinism::kRun, Determinism::kBatch}) {
        OpRequest request = WithDeterminism(product, level);
        request.on_unfused = OnUnfused::kAllow;
        const OperationPlan plan = MustPlan(request, group);
        EXPECT_TRUE(plan.deterministic);
        EXPECT_EQ(plan.determinism, level);
        EXPECT_FALSE(ProductsOf(plan).empty());
        for (const MatmulStep& matmul : ProductsOf(plan)) {
          EXPECT_TRUE(matmul.repeatable);
          EXPECT_EQ(matmul.fixed_order, level == Determinism::kBatch);
        }
      }
    }
  }
}

// Kernels of one order of K for each request: the fused ones, or the plain one.
TEST(DeterminismChoice, TakesOneKindOfKernelForAllRowsOnCuda) {
  const GroupContext group = HopperGroup(2);
  for (const int64_t rows : {2, 6, 64, 200, 256, 4096}) {
    for (OpRequest product :
         {MatmulAllReduce(rows, 512, 256, DType::kBf16), MatmulScatter(2, rows, 512, 256, 0, DType::kF16),
          GatherMatmul(2, rows / 2, 512, 256, 0, DType::kBf16)}) {
      product = WithDeterminism(product, Determinism::kBatch);
      const OperationPlan plan = MustPlan(product, group);
      EXPECT_EQ(plan.algorithm, Algorithm::kFused);
      EXPECT_THAT(ReasonAgainst(plan, Algorithm::kUnfused), HasSubstr("other kernels than the fused ones"));
      product.algorithm = Algorithm::kUnfused;
      product.on_unfused = OnUnfused::kAllow;
      EXPECT_THAT(PlanOf(product, group).status().message(), HasSubstr("other kernels than the fused ones"));
    }
    // No fused kernel multiplies fp32, nor a K of 12 bytes.
    for (OpRequest product : {MatmulAllReduce(rows, 512, 256), MatmulAllReduce(rows, 512, 6, DType::kBf16)}) {
      product = WithDeterminism(product, Determinism::kBatch);
      product.on_unfused = OnUnfused::kAllow;
      const OperationPlan plan = MustPlan(product, group);
      EXPECT_NE(plan.algorithm, Algorithm::kFused);
      EXPECT_THAT(plan.warnings, Contains(HasSubstr("determinism = batch")));
    }
  }
}

// Where the fused kernels would take one number of rows and not another, nothing may take their place.
TEST(DeterminismChoice, RefusesRowsThatTheFusedKernelsCannotRead) {
  OpRequest product = WithDeterminism(MatmulAllReduce(64, 512, 256, DType::kBf16), Determinism::kBatch);
  product.operands[0].spec.strides = {257, 1};
  product.on_unfused = OnUnfused::kAllow;
  const Status refused = PlanOf(product, HopperGroup(2)).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("A's pitch is no multiple of 16 bytes"));
  EXPECT_TRUE(PlanOf(product, SwitchGroup(2)).ok());
}

TEST(DeterminismChoice, RefusesAGatherAlongKForABatch) {
  OpRequest product = WithDeterminism(GatherMatmul(4, 64, 64, 64, 1, DType::kBf16), Determinism::kBatch);
  product.on_unfused = OnUnfused::kAllow;
  const Status refused = PlanOf(product, SwitchGroup(4)).status();
  EXPECT_EQ(refused.detail().reason, "DETERMINISM_REFUSED");
  EXPECT_EQ(refused.detail().field, "determinism");
  EXPECT_THAT(refused.message(), HasSubstr("multiplies each rank's part of K apart"));
}

TEST(DeterminismChoice, HoldsInEachRangeOfAFamilyOfProducts) {
  OpRequest request = WithDeterminism(MatmulAllReduce(1, 1024, 2048, DType::kBf16), Determinism::kBatch);
  request.max_rows = 4096;
  GroupContext group = HopperGroup(2);
  group.client_kernels = ClientKernels::kFused;
  const OperationPlan plan = MustPlan(request, group);
  EXPECT_EQ(plan.determinism, Determinism::kBatch);
  for (const RowRange& range : plan.rows.ranges) {
    if (range.last > 0) {
      EXPECT_EQ(range.algorithm, Algorithm::kFused);
    }
  }
}

TEST(DeterminismChoice, KeepsRanksAlikeAlongK) {
  OpRequest request = WithDeterminism(GatherMatmul(4, 64, 64, 64, 1, DType::kBf16), Determinism::kRun);
  request.on_unfused = OnUnfused::kAllow;
  const OperationPlan plan = MustPlan(request, SwitchGroup(4));
  EXPECT_EQ(plan.algorithm, Algorithm::kUnfused);
  for (const Algorithm algorithm : {Algorithm::kPipeline, Algorithm::kRing})
    EXPECT_THAT(ReasonAgainst(plan, algorithm), HasSubstr("ranks differ in the last bits"));
}

TEST(DeterminismChoice, AddsTheSquaresOfABatchInAFixedOrder) {
  for (const auto& [level, fixed] :
       {std::pair{Determinism::kOff, false}, {Determinism::kRun, false}, {Determinism::kBatch, true}}) {
    const OperationPlan plan = MustPlan(WithDeterminism(WithNorm(16, 64), level), SwitchGroup(2));
    for (const RankProgram& program : plan.programs)
      EXPECT_EQ(std::get<NormStep>(program.steps.back().work).fixed_order, fixed);
  }
}

TEST(DeterminismChoice, HoldsInEachRangeOfAFamily) {
  OpRequest request = WithDeterminism(WithNorm(1, 8192), Determinism::kBatch);
  request.max_rows = 65536;
  GroupContext group = SwitchGroup(4);
  const OperationPlan plan = MustPlan(request, group);
  EXPECT_EQ(plan.determinism, Determinism::kBatch);
  for (const RowRange& range : plan.rows.ranges) EXPECT_NE(range.algorithm, Algorithm::kNccl);
}

TEST(DeterminismChoice, MustAgree) {
  std::vector<OpRequest> requests = OnAllRanks(AllReduce(64), 3);
  requests[2].determinism = Determinism::kBatch;
  const Status differs = CompareRequests(requests);
  EXPECT_EQ(differs.detail().reason, "FIELD_MISMATCH");
  EXPECT_EQ(differs.detail().field, "determinism");
  EXPECT_THAT(differs.message(), HasSubstr("off"));
  EXPECT_THAT(differs.message(), HasSubstr("batch"));
  ExpectRefused(
      AllReduce(64), [](OpRequest* r) { r->determinism = static_cast<Determinism>(9); }, "determinism",
      "must be off, run or batch");
}

}  // namespace
}  // namespace tandem::plan
