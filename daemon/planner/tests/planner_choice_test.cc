// The choice of an algorithm: thresholds with their bounds inclusive, what cannot run, what may override
// what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

GroupContext FullMeshGroup() {
  GroupContext group = PcieGroup(4);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) group.topology.nvlinks[i][j] = i == j ? 0 : 4;
  }
  return group;
}

TEST(AllReduceChoice, KeepsTheBoundsInclusive) {
  for (const GroupContext& group : {SwitchGroup(8), SwitchGroup(2), FullMeshGroup()}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      const int64_t size = static_cast<int64_t>(DTypeBytes(dtype));
      const int64_t one_shot = (256 << 10) / size, two_shot = (10 << 20) / size;
      const auto chosen = [&](int64_t count) { return MustPlan(AllReduce(count, dtype), group).algorithm; };
      EXPECT_EQ(chosen(0), Algorithm::kOneShot);
      EXPECT_EQ(chosen(one_shot - 1), Algorithm::kOneShot);
      EXPECT_EQ(chosen(one_shot), Algorithm::kOneShot);
      EXPECT_EQ(chosen(one_shot + 1), Algorithm::kTwoShot);
      EXPECT_EQ(chosen(two_shot - 1), Algorithm::kTwoShot);
      EXPECT_EQ(chosen(two_shot), Algorithm::kTwoShot);
      EXPECT_EQ(chosen(two_shot + 1), Algorithm::kNccl);
    }
  }
}

// Also where nobody has measured them: on three and eight GPUs, and without switches.
TEST(AllReduceChoice, TheClientTakesPacketsForTheSmallestWhereAllPairsAreLinked) {
  for (GroupContext group : {SwitchGroup(8), SwitchGroup(3), FullMeshGroup()}) {
    group.packet_kernels = true;
    group.dense_packets = false;
    group.client_kernels = ClientKernels::kProducts;
    group.placement = PlanPlacement::kClient;
    const auto chosen = [&](int64_t count) { return MustPlan(AllReduce(count), group).algorithm; };
    const int64_t bound = (256 << 10) / 4;
    EXPECT_EQ(chosen(16), Algorithm::kLowLatency);
    EXPECT_EQ(chosen(bound), Algorithm::kLowLatency);
    EXPECT_EQ(chosen(bound + 1), Algorithm::kTwoShot);
  }
  GroupContext pcie = PcieGroup(4);
  pcie.packet_kernels = true;
  EXPECT_EQ(MustPlan(AllReduce(16), pcie).algorithm, Algorithm::kNccl);
}

TEST(AllReduceChoice, UsesTheMeshesOwnOneShotAndNeverTwoShot) {
  const int64_t bound = (256 << 10) / 4;
  EXPECT_EQ(MustPlan(AllReduce(bound - 1), MeshGroup()).algorithm, Algorithm::kHybridCubeMesh);
  EXPECT_EQ(MustPlan(AllReduce(bound), MeshGroup()).algorithm, Algorithm::kHybridCubeMesh);
  const OperationPlan above = MustPlan(AllReduce(bound + 1), MeshGroup());
  EXPECT_EQ(above.algorithm, Algorithm::kNccl);
  EXPECT_THAT(ReasonAgainst(above, Algorithm::kTwoShot), HasSubstr("no peer access"));
  EXPECT_THAT(ReasonAgainst(above, Algorithm::kHybridCubeMesh),
              HasSubstr("262148 B is above its bound of 256 KiB"));
  // With peer access over PCIe it could run, and still is not chosen.
  GroupContext reachable = MeshGroup();
  for (auto& row : reachable.topology.p2p) row.fill(true);
  EXPECT_EQ(MustPlan(AllReduce(bound + 1), reachable).algorithm, Algorithm::kNccl);
}

TEST(AllReduceChoice, TakesNcclOnOtherClasses) {
  EXPECT_EQ(MustPlan(AllReduce(16), PcieGroup(4)).algorithm, Algorithm::kNccl);
  GroupContext without = PcieGroup(4);
  without.nccl = false;
  const OperationPlan plan = MustPlan(AllReduce(16), without);
  EXPECT_EQ(plan.algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(ReasonAgainst(plan, Algorithm::kNccl), "NCCL is not available");
  without.no_nccl = "ranks share a GPU";
  const OperationPlan shared = MustPlan(AllReduce(16), without);
  EXPECT_EQ(ReasonAgainst(shared, Algorithm::kNccl), "ranks share a GPU");
  EXPECT_EQ(shared.reason, "ranks share a GPU");
}

// NCCL's sums of e5m2 saturate; e4m3 has no infinities to lose.
TEST(AllReduceChoice, KeepsTheInfinitiesOfE5M2) {
  const int64_t count = (10 << 20) + 1;
  const OperationPlan plan = MustPlan(AllReduce(count, DType::kF8E5M2), SwitchGroup(4));
  EXPECT_EQ(plan.algorithm, Algorithm::kTwoShot);
  EXPECT_THAT(plan.reason, HasSubstr("lose infinities"));
  EXPECT_EQ(MustPlan(AllReduce(count, DType::kF8E4M3), SwitchGroup(4)).algorithm, Algorithm::kNccl);
  EXPECT_EQ(MustPlan(AllReduce(count, DType::kF8E5M2), PcieGroup(4)).algorithm, Algorithm::kNccl);
  OpRequest asked = AllReduce(count, DType::kF8E5M2);
  asked.algorithm = Algorithm::kNccl;
  EXPECT_EQ(MustPlan(asked, SwitchGroup(4)).algorithm, Algorithm::kNccl);
}

TEST(AllReduceChoice, ExplainsEveryOtherAlgorithm) {
  const OperationPlan plan = MustPlan(AllReduce((10 << 20) / 4 + 1), SwitchGroup(4));
  EXPECT_EQ(plan.refused.size(), AlgorithmsOf(Op::kAllReduce).size() - 1);
  EXPECT_THAT(plan.reason, HasSubstr("above 10 MiB"));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kOneShot), HasSubstr("above its bound of 256 KiB"));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kTwoShot), HasSubstr("above its bound of 10 MiB"));
  EXPECT_EQ(ReasonAgainst(plan, Algorithm::kHybridCubeMesh),
            "needs a hybrid cube mesh; this group is nvswitch");
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kCopyEngine), HasSubstr("when it is asked for"));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kLowLatency), HasSubstr("CUDA backend's kernels"));
  for (const RefusedAlgorithm& refused : plan.refused) {
    const bool can_run = refused.algorithm == Algorithm::kOneShot ||
                         refused.algorithm == Algorithm::kTwoShot ||
                         refused.algorithm == Algorithm::kCopyEngine;
    EXPECT_EQ(refused.predicted_us > 0, can_run) << AlgorithmName(refused.algorithm);
  }
  EXPECT_GT(plan.predicted_us, 0);
  EXPECT_FALSE(plan.deterministic);
}

TEST(AskedAlgorithm, OverridesBoundsButNotImpossibility) {
  OpRequest request = AllReduce(20 << 20);
  request.algorithm = Algorithm::kOneShot;
  const OperationPlan plan = MustPlan(request, SwitchGroup(2));
  EXPECT_EQ(plan.algorithm, Algorithm::kOneShot);
  EXPECT_THAT(plan.reason, HasSubstr("asked for; 80 MiB is above its bound"));
  request.algorithm = Algorithm::kHybridCubeMesh;
  const Status refused = PlanOf(request, SwitchGroup(2)).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "ALGORITHM_REFUSED");
  EXPECT_THAT(refused.message(), HasSubstr("needs a hybrid cube mesh; this group is nvswitch"));
  EXPECT_THAT(refused.message(), HasSubstr("one_shot: possible"));
  request.algorithm = Algorithm::kLowLatency;
  GroupContext hopper = SwitchGroup(2);
  EXPECT_THAT(PlanOf(request, hopper).status().message(), HasSubstr("needs the CUDA backend's kernels"));
  hopper.packet_kernels = true;
  EXPECT_THAT(PlanOf(request, hopper).status().message(), HasSubstr("is above its bound of 512 KiB"));
}

TEST(AskedAlgorithm, MustBelongToTheOperation) {
  OpRequest request = AllReduce(8);
  request.algorithm = Algorithm::kPipeline;
  const Status status = PlanOf(request, SwitchGroup(2)).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.detail().field, "algorithm");
}

TEST(MoveChoice, GoesBySizeAndClass) {
  const auto gather = [](int64_t bytes) {
    return Request(Op::kAllGather, {Tensor(Role::kInput, DType::kU8, {bytes / 4}),
                                    Tensor(Role::kOutput, DType::kU8, {bytes})});
  };
  EXPECT_EQ(MustPlan(gather(8 << 20), SwitchGroup(4)).algorithm, Algorithm::kSm);
  EXPECT_EQ(MustPlan(gather((8 << 20) + 4), SwitchGroup(4)).algorithm, Algorithm::kCopyEngine);
  EXPECT_EQ(MustPlan(gather(4096), PcieGroup(4)).algorithm, Algorithm::kNccl);
  OpRequest low = gather(4096);
  low.low_contention = true;
  const OperationPlan plan = MustPlan(low, SwitchGroup(4));
  EXPECT_EQ(plan.algorithm, Algorithm::kCopyEngine);
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kSm), HasSubstr("low contention"));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kNccl), HasSubstr("low contention"));
}

TEST(FusedChoice, TakesTheUnfusedOneWhereItIsFasterAndSaysSo) {
  OpRequest small = GatherMatmul(8, 8, 64, 64, 0, DType::kBf16);
  OperationPlan plan = MustPlan(small, SwitchGroup(8));
  EXPECT_EQ(plan.algorithm, Algorithm::kUnfused);
  EXPECT_FALSE(plan.fused);
  EXPECT_TRUE(plan.warnings.empty());
  small.on_unfused = OnUnfused::kWarn;
  plan = MustPlan(small, SwitchGroup(8));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kPipeline), HasSubstr("unfused is preferred: predicted"));
  EXPECT_TRUE(plan.warnings.empty()) << "nothing is lost";
  small.algorithm = Algorithm::kUnfused;
  plan = MustPlan(small, SwitchGroup(8));
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_THAT(plan.warnings[0], HasSubstr("runs unfused; pipeline: "));
  const OperationPlan large = MustPlan(GatherMatmul(8, 1024, 7168, 8192, 0, DType::kBf16), SwitchGroup(8));
  EXPECT_TRUE(large.fused);
  EXPECT_EQ(large.algorithm, Algorithm::kPipeline);
}

TEST(FusedChoice, TakesFusedKernelsUnaskedOnlyWhereTheOperatorAllowsIt) {
  const OpRequest request = GatherMatmul(8, 1024, 7168, 8192, 0, DType::kBf16);
  GroupContext group = SwitchGroup(8);
  group.fused_kernels = true;
  OperationPlan plan = MustPlan(request, group);
  EXPECT_NE(plan.algorithm, Algorithm::kFused);
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kFused), HasSubstr("when it is asked for (fused = explicit)"));
  group.fused_by_choice = true;
  plan = MustPlan(request, group);
  EXPECT_EQ(plan.algorithm, Algorithm::kFused);
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kPipeline), HasSubstr("fused is preferred"));
  group.fused_kernels = false;
  group.no_fused_kernels = "the engine of rank 3 has no fused kernels";
  plan = MustPlan(request, group);
  EXPECT_NE(plan.algorithm, Algorithm::kFused);
  EXPECT_EQ(ReasonAgainst(plan, Algorithm::kFused), "the engine of rank 3 has no fused kernels");
}

TEST(FusedChoice, NeverRunsUnfusedWhenThatIsAnError) {
  OpRequest request = GatherMatmul(8, 8, 64, 64, 0, DType::kBf16);
  request.on_unfused = OnUnfused::kError;
  const OperationPlan plan = MustPlan(request, SwitchGroup(8));
  EXPECT_TRUE(plan.fused);
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kUnfused), HasSubstr("on_unfused is error"));
  // No peer access: only NCCL could do it.
  GroupContext isolated = PcieGroup(4);
  isolated.topology.p2p[1][2] = isolated.topology.p2p[2][1] = false;
  request = GatherMatmul(4, 8, 64, 64);
  request.on_unfused = OnUnfused::kError;
  Status status = PlanOf(request, isolated).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.detail().reason, "UNFUSED_REFUSED");
  EXPECT_THAT(status.message(), HasSubstr("pipeline: ranks 1 and 2 have no peer access"));
  EXPECT_THAT(status.message(), HasSubstr("fused: needs the CUDA backend"));
  request.on_unfused = OnUnfused::kAllow;
  EXPECT_EQ(MustPlan(request, isolated).algorithm, Algorithm::kUnfused);
  request.on_unfused = OnUnfused::kError;
  request.algorithm = Algorithm::kUnfused;
  status = PlanOf(request, SwitchGroup(4)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.detail().reason, "UNFUSED_REFUSED");
}

TEST(FusedChoice, AGatheringRingNeedsItsNeighboursOnly) {
  GroupContext group = PcieGroup(4);
  group.topology.p2p[0][2] = group.topology.p2p[2][0] = false;
  OpRequest request = GatherMatmul(4, 8, 64, 64);
  request.operands.push_back(Tensor(Role::kGatheredA, DType::kF32, {32, 64}));
  request.operands.back().symmetric = true;  // with an entry exchange
  request.algorithm = Algorithm::kRing;
  const OperationPlan plan = MustPlan(request, group);
  EXPECT_EQ(Simulate(plan, OnAllRanks(request, 4)), "");
  for (const RankProgram& program : plan.programs) {
    for (const Step& step : program.steps) {
      if (const auto* signal = std::get_if<SignalStep>(&step.work)) {
        EXPECT_TRUE(group.topology.p2p[program.rank][signal->to_rank]) << step.label;
      }
    }
  }
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kPipeline), HasSubstr("ranks 0 and 2 have no peer access"));
  OpRequest scatter = MatmulScatter(4, 8, 8, 8);
  scatter.algorithm = Algorithm::kRing;
  EXPECT_EQ(PlanOf(scatter, group).status().code(), Code::kFailedPrecondition);
}

TEST(FusedChoice, NothingCanRunWithoutPeerAccessAndNccl) {
  GroupContext isolated = PcieGroup(4);
  isolated.topology.p2p[0][3] = isolated.topology.p2p[3][0] = false;
  isolated.nccl = false;
  for (const OpRequest& request : {GatherMatmul(4, 8, 8, 8), AllReduce(8)}) {
    const Status status = PlanOf(request, isolated).status();
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("ranks 0 and 3 have no peer access"));
  }
}

TEST(OneRank, HasNothingToCommunicate) {
  OperationPlan plan = MustPlan(AllReduce(100 << 20), SwitchGroup(1));
  EXPECT_EQ(plan.programs[0].steps.size(), 1u);
  EXPECT_EQ(plan.bytes_moved, 0u);
  EXPECT_THAT(plan.reason, HasSubstr("one rank"));
  OpRequest in_place = AllReduce(64);
  in_place.operands[1].alias_of = 0;
  EXPECT_TRUE(MustPlan(in_place, SwitchGroup(1)).programs[0].steps.empty());
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    in_place.op = op;
    EXPECT_TRUE(MustPlan(in_place, SwitchGroup(1)).programs[0].steps.empty());
  }
  OpRequest fused = GatherMatmul(1, 8, 8, 8);
  fused.on_unfused = OnUnfused::kError;
  plan = MustPlan(fused, SwitchGroup(1));
  EXPECT_TRUE(plan.fused);
  EXPECT_EQ(plan.programs[0].steps.size(), 1u);
  for (int world : {1, 4}) {
    EXPECT_TRUE(MustPlan(Request(Op::kEmpty, {}), SwitchGroup(world)).programs[0].steps.empty());
    EXPECT_TRUE(MustPlan(Request(Op::kBarrier, {}), SwitchGroup(world)).programs[0].steps.empty());
  }
}

TEST(Algorithms, AreKnownForEveryOperation) {
  for (int op = static_cast<int>(Op::kAllReduce); op <= static_cast<int>(Op::kEmpty); ++op) {
    EXPECT_FALSE(AlgorithmsOf(static_cast<Op>(op)).empty());
  }
  EXPECT_TRUE(IsFusedOp(Op::kMatmulAllReduce));
  EXPECT_FALSE(IsFusedOp(Op::kAsyncInputMatmul));
  for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    const auto algorithms = AlgorithmsOf(op);
    EXPECT_NE(std::find(algorithms.begin(), algorithms.end(), Algorithm::kUnfused), algorithms.end());
  }
}

TEST(MatmulNotes, SayWhatALayoutCostsOnCuda) {
  GroupContext group = SwitchGroup(2);
  OpRequest request = GatherMatmul(2, 64, 48, 32, 0, DType::kF8E4M3);
  request.operands[2].spec.dtype = DType::kBf16;
  const auto scales = [&](OpRequest from) {
    from.operands.push_back(Tensor(Role::kScaleA, DType::kF32, {1}));
    from.operands.push_back(Tensor(Role::kScaleB, DType::kF32, {1}));
    return from;
  };
  EXPECT_THAT(MustPlan(scales(request), group).warnings, testing::IsEmpty());  // the host backend takes all
  group.packet_kernels = true;
  EXPECT_THAT(
      MustPlan(scales(request), group).warnings,
      testing::ElementsAre(HasSubstr("B (fp8) is not dense along K: each of its products transposes")));
  request.operands[1].spec.strides = {1, 32};
  EXPECT_THAT(MustPlan(scales(request), group).warnings, testing::IsEmpty());
  request.operands[1].spec.strides = {2, 64};
  EXPECT_THAT(MustPlan(scales(request), group).warnings,
              testing::ElementsAre(HasSubstr("B is dense along neither dimension")));
  request.operands[1].spec.strides = {1, 16};
  EXPECT_THAT(MustPlan(scales(request), group).warnings,
              testing::ElementsAre(HasSubstr("elements of B overlap")));
  // Scales by blocks of K: 256 of it are two.
  for (int64_t rows : {4, 3}) {
    OpRequest blocks = GatherMatmul(2, rows * 2, 256, 144, 0, DType::kF8E4M3);
    blocks.operands[0].spec.shape = {rows, 256};
    blocks.operands[1].spec = {DType::kF8E4M3, {256, 144}, {1, 256}};
    blocks.operands[2].spec = {DType::kBf16, {2 * rows, 144}, {}};
    blocks.operands.push_back(Tensor(Role::kScaleA, DType::kF32, {rows, 2}));
    blocks.operands.push_back(Tensor(Role::kScaleB, DType::kF32, {2, 2}));
    if (rows == 4) {
      EXPECT_THAT(MustPlan(blocks, group).warnings, testing::IsEmpty());
    } else {
      EXPECT_THAT(MustPlan(blocks, group).warnings,
                  testing::ElementsAre(HasSubstr("must be multiples of 4")));
    }
  }
}

// Every part of a request that cuBLASLt refuses is noted, whichever kernel applies it.
TEST(MatmulNotes, SayWhatOfAnEpilogueRunsOnThePlainKernel) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  const auto warnings = [&](OpRequest request, std::vector<Operand> operands, DType out = DType::kBf16) {
    request.operands[2].spec.dtype = out;
    request.operands.insert(request.operands.end(), operands.begin(), operands.end());
    return MustPlan(request, group).warnings;
  };
  const auto bf16 = [](int dim) { return GatherMatmul(2, 64, 48, 32, dim, DType::kBf16); };
  const Operand bias = Tensor(Role::kBias, DType::kBf16, {48}),
                wide_bias = Tensor(Role::kBias, DType::kF32, {48});
  const Operand result_scale = Tensor(Role::kResultScale, DType::kF32, {1});
  EXPECT_THAT(warnings(bf16(0), {bias}), testing::IsEmpty());
  EXPECT_THAT(
      warnings(bf16(0), {wide_bias}),
      testing::ElementsAre(HasSubstr("plain kernel, many times slower than cuBLASLt: its bias is f32")));
  EXPECT_THAT(warnings(bf16(0), {Tensor(Role::kBias, DType::kBf16, {48}, {2})}),
              testing::ElementsAre(HasSubstr("bias is not contiguous")));
  EXPECT_THAT(warnings(bf16(0), {result_scale}), testing::ElementsAre(HasSubstr("it has a result scale")));
  // Along K the rounding applies them; into f32 there is none.
  EXPECT_THAT(warnings(bf16(1), {wide_bias, result_scale}), testing::IsEmpty());
  EXPECT_THAT(warnings(bf16(1), {wide_bias}, DType::kF32), testing::IsEmpty());
  EXPECT_THAT(warnings(bf16(1), {result_scale}, DType::kF32),
              testing::ElementsAre(HasSubstr("it has a result scale")));
  // So does the sum over ranks.
  EXPECT_THAT(warnings(MatmulScatter(2, 64, 48, 32, 0, DType::kBf16), {wide_bias, result_scale}),
              testing::IsEmpty());
  EXPECT_THAT(warnings(MatmulAllReduce(64, 48, 32, DType::kBf16), {wide_bias, result_scale}),
              testing::IsEmpty());

  OpRequest fp8 = GatherMatmul(2, 64, 48, 32, 0, DType::kF8E4M3);
  fp8.operands[1].spec.strides = {1, 32};
  const auto scales = [](std::vector<int64_t> a, std::vector<int64_t> b) {
    std::vector<Operand> operands;
    if (!a.empty()) operands.push_back(Tensor(Role::kScaleA, DType::kF32, std::move(a)));
    if (!b.empty()) operands.push_back(Tensor(Role::kScaleB, DType::kF32, std::move(b)));
    return operands;
  };
  EXPECT_THAT(warnings(fp8, scales({64, 1}, {1, 48})), testing::IsEmpty());
  EXPECT_THAT(warnings(fp8, scales({64, 1}, {1})),
              testing::ElementsAre(HasSubstr("A has a scale for each row, B one")));
  EXPECT_THAT(warnings(fp8, scales({1}, {1, 48})),
              testing::ElementsAre(HasSubstr("B has a scale for each column, A one")));
  EXPECT_THAT(warnings(fp8, scales({1}, {})),
              testing::ElementsAre(HasSubstr("A has scales, and B has none")));
  EXPECT_THAT(warnings(fp8, scales({}, {1})),
              testing::ElementsAre(HasSubstr("B has scales, and A has none")));
  EXPECT_THAT(warnings(fp8, scales({1}, {1}), DType::kF8E4M3),
              testing::ElementsAre(HasSubstr("rounded to f8e4m3")));
}

// The products of rank 0, each with whether its rows and C's lie at one pitch.
std::vector<bool> Matrices(const OpRequest& request, const GroupContext& group) {
  std::vector<bool> matrices;
  for (const Step& step : ExpandedSteps(MustPlan(request, group).programs[0])) {
    const auto* matmul = std::get_if<MatmulStep>(&step.work);
    if (matmul != nullptr) matrices.push_back(HasOnePitch(matmul->a) && HasOnePitch(matmul->c));
  }
  return matrices;
}

// A slice along an inner dimension has no rows of one pitch: it is multiplied by its matrices, which cuBLASLt
// takes.
TEST(LeadingDimensions, PiecesAreMultipliedByMatrices) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  const auto asked = [](OpRequest request, Algorithm algorithm) {
    request.algorithm = algorithm;
    return request;
  };
  const auto gather = [](std::vector<int64_t> shard, int dim) {
    OpRequest request = GatherMatmul(2, 64, 48, 32, 0, DType::kBf16);
    request.dim = dim;
    request.operands[0].spec.shape = shard;
    shard[static_cast<size_t>(dim)] *= 2;
    shard.back() = 48;
    request.operands[2].spec.shape = shard;
    return request;
  };
  const auto scatter = [](std::vector<int64_t> rows, int dim) {
    OpRequest request = MatmulScatter(2, 64, 48, 32, 0, DType::kBf16);
    request.dim = dim;
    request.operands[0].spec.shape = rows;
    rows[static_cast<size_t>(dim)] /= 2;
    rows.back() = 48;
    request.operands[2].spec.shape = rows;
    return request;
  };
  for (Algorithm algorithm : {Algorithm::kPipeline, Algorithm::kUnfused}) {
    EXPECT_EQ(Matrices(asked(gather({4, 16, 32}, 1), algorithm), group), std::vector<bool>(8, true));
    EXPECT_EQ(Matrices(asked(gather({16, 4, 32}, 1), algorithm), group),
              std::vector<bool>(8, true));  // the fewer ones
    EXPECT_EQ(Matrices(asked(scatter({4, 16, 32}, 1), algorithm), group), std::vector<bool>(8, true));
    // Along the first dimension, or behind those of one element, pieces are matrices.
    const size_t products = algorithm == Algorithm::kPipeline ? 2 : 1;
    EXPECT_EQ(Matrices(asked(gather({4, 16, 32}, 0), algorithm), group), std::vector<bool>(products, true));
    EXPECT_EQ(Matrices(asked(gather({1, 16, 32}, 1), algorithm), group), std::vector<bool>(products, true));
    EXPECT_EQ(Matrices(asked(scatter({1, 16, 32}, 1), algorithm), group), std::vector<bool>(products, true));
  }
  // Tiles are ranges of all rows.
  OpRequest all = MatmulAllReduce(64, 48, 32, DType::kBf16);
  all.operands[0].spec.shape = {4, 16, 32};
  all.operands[2].spec.shape = {4, 16, 48};
  EXPECT_EQ(Matrices(asked(all, Algorithm::kTiledTwoShot), group), std::vector<bool>(4, true));
  EXPECT_THAT(MustPlan(asked(gather({4, 16, 32}, 1), Algorithm::kPipeline), group).warnings,
              testing::IsEmpty());

  // So many matrices that they would fill a stream are left to the kernel of any strides, and the plan says
  // so.
  EXPECT_EQ(Matrices(asked(gather({65, 66, 32}, 1), Algorithm::kPipeline), group),
            std::vector<bool>(2, false));
  EXPECT_THAT(MustPlan(gather({65, 66, 32}, 1), group).warnings,
              testing::ElementsAre(HasSubstr("rows of A or C are not evenly spaced")));
}

// Leading dimensions of one element change nothing of what the kernels take.
TEST(LeadingDimensions, OfOneElementAreNone) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = group.fused_kernels = group.fused_by_choice = true;
  for (Algorithm algorithm : {Algorithm::kFused, Algorithm::kLowLatency}) {
    for (bool scatters : {false, true}) {
      OpRequest request = scatters ? MatmulScatter(2, 64, 48, 32, 0, DType::kBf16)
                                   : GatherMatmul(2, 64, 48, 32, 0, DType::kBf16);
      request.dim = 1;
      request.algorithm = algorithm;
      request.operands[0].spec.shape = {1, 64, 32};
      request.operands[2].spec.shape = {1, scatters ? 32 : 128, 48};
      EXPECT_EQ(MustPlan(request, group).algorithm, algorithm);
      request.operands[0].spec.shape = {2, 64, 32};
      request.operands[2].spec.shape = {2, scatters ? 32 : 128, 48};
      const auto refused = PlanOf(request, group);
      ASSERT_FALSE(refused.ok());
      EXPECT_THAT(refused.status().message(), HasSubstr("the dimension must be the first"));
    }
  }
}

TEST(PlannerText, AListingHasTheEpilogueInItsOrder) {
  OpRequest request = MatmulAllReduce(16, 24, 32);
  request.operands.push_back(Tensor(Role::kBias, DType::kF32, {24}));
  request.operands.push_back(Tensor(Role::kResultScale, DType::kF32, {1}));
  for (const RankProgram& program : MustPlan(request, SwitchGroup(2)).programs) {
    EXPECT_THAT(ListProgram(program), HasSubstr(" +bias *result_scale"));
  }
}

TEST(PlannerText, TheReductionOrderOverKIsThatOfTheAlgorithm) {
  OpRequest request = GatherMatmul(4, 16, 24, 32, 1);
  request.algorithm = Algorithm::kUnfused;
  Result<OperationPlan> unfused = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(unfused.ok()) << unfused.status().ToString();
  EXPECT_EQ(unfused->reduction_order, "over K in rank order, fp32");
  request.algorithm = Algorithm::kRing;
  Result<OperationPlan> ring = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(ring.ok()) << ring.status().ToString();
  EXPECT_EQ(ring->reduction_order, "over K in the order of arrival: own shard first, fp32");
  // Gathered along the rows nothing is summed across shards.
  Result<OperationPlan> rows = PlanOf(GatherMatmul(4, 16, 24, 32, 0), SwitchGroup(4));
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(rows->reduction_order, "");
}

}  // namespace
}  // namespace tandem::plan
