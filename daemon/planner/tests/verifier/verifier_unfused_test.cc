// A product and a collective one after the other, by every collective that unfused may take. They are proven
// and right for all dimensions, scales, strides and types, in the bulk area, and as the kernels that GPUs
// run. Also the choice of the collective.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/choice/matmul_collective.h"
#include "daemon/planner/families/families.h"
#include "daemon/planner/tests/planner_fixtures.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"
#include "program/kernel_phases.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Shape = std::vector<int64_t>;

constexpr Op kUnfusedOps[] = {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce};

std::vector<Algorithm> CollectivesOf(Op op) {
  using enum Algorithm;
  if (op == Op::kMatmulAllReduce) return {kNccl, kOneShot, kTwoShot, kCopyEngine, kLowLatency};
  return {kNccl, kSm, kCopyEngine, kLowLatency};
}

// `requests` as an unfused plan by `collective`, whatever would be chosen.
Result<OperationPlan> PlanBy(const std::vector<OpRequest>& requests, const GroupContext& group,
                             Algorithm collective) {
  TANDEM_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(requests, group));
  OperationPlan plan;
  plan.op = problem.request->op;
  plan.algorithm = Algorithm::kUnfused;
  const Status built = plan.op == Op::kAllGatherMatmul
                           ? BuildAllGatherMatmul(problem, plan.algorithm, collective, &plan)
                       : plan.op == Op::kMatmulReduceScatter
                           ? BuildMatmulReduceScatter(problem, plan.algorithm, collective, &plan)
                           : BuildMatmulAllReduce(problem, plan.algorithm, collective, &plan);
  if (!built.ok()) return built;
  AppendNorm(problem, &plan);
  PlanKernels(&plan.programs, 0);
  return plan;
}

const CollectiveStep* Kernel(const RankProgram& program) {
  for (const Step& step : program.steps) {
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) return collective;
  }
  return nullptr;
}

GroupContext H200s(int world) {
  GroupContext group = ReferenceSwitchGroup(world);
  group.packet_kernels = true;
  return group;
}

class Unfused : public testing::TestWithParam<int> {};

// The sweep's requests, which have every dimension, scale mode, wire type, stride and symmetric operand there
// is.
TEST_P(Unfused, IsProvenAndRightByEveryCollective) {
#ifdef TANDEM_SANITIZED
  constexpr int kEvery = 11;
#else
  constexpr int kEvery = 1;
#endif
  const int world = GetParam();
  int ran = 0, seen = 0;
  for (const Case& c : CasesOf(world)) {
    const OpRequest& request = c.requests[0];
    if (!IsFusedOp(request.op) || request.algorithm != Algorithm::kUnfused || ++seen % kEvery != 0) continue;
    for (Algorithm collective : CollectivesOf(request.op)) {
      auto plan = PlanBy(c.requests, c.group, collective);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      CheckOptions options;
      options.seeds = {1};
      EXPECT_EQ(CheckPlan(*plan, c.requests, options), "")
          << c.name << " by " << AlgorithmName(collective) << "\n"
          << ListProgram(plan->programs[0]);
      const bool moves_only = request.op == Op::kAllGatherMatmul;
      EXPECT_EQ(plan->deterministic, moves_only || collective != Algorithm::kNccl) << c.name;
      ++ran;
    }
  }
  EXPECT_GT(ran, 50 / kEvery);
}

// The same sweep on the ranks' own streams: one kernel, and around it work on memory that has no halves.
TEST_P(Unfused, IsProvenAndRightInTheClient) {
#ifdef TANDEM_SANITIZED
  constexpr int kEvery = 11;
#else
  constexpr int kEvery = 1;
#endif
  struct CheckedPlan {
    std::vector<RankProgram> programs;
    VerifyContext context;
  };
  const int world = GetParam();
  constexpr VerifyOptions kClient{.in_client = true};
  std::vector<CheckedPlan> kept;  // one of each operation and collective, to alternate with
  int ran = 0, seen = 0, pairs = 0;
  for (const Case& c : CasesOf(world)) {
    const OpRequest& request = c.requests[0];
    if (!IsFusedOp(request.op) || request.algorithm != Algorithm::kUnfused || ++seen % kEvery != 0) continue;
    GroupContext group = c.group;
    group.placement = PlanPlacement::kClient;
    const auto context = ContextOf(c.requests);
    ASSERT_TRUE(context.ok());
    for (Algorithm collective : CollectivesOf(request.op)) {
      if (collective == Algorithm::kNccl || collective == Algorithm::kCopyEngine) continue;
      auto plan = PlanBy(c.requests, group, collective);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      const std::string name =
          c.name + " by " + std::string(AlgorithmName(collective)) + "\n" + ListProgram(plan->programs[0]);
      const Status proof = VerifyPrograms(plan->programs, *context, kClient);
      ASSERT_TRUE(proof.ok()) << proof.ToString() << "\n" << name;
      CheckOptions options;
      options.seeds = {1};
      options.verify_queues = {0};
      ASSERT_EQ(CheckPlan(*plan, c.requests, options), "") << name;
      if (Kernel(plan->programs[0])->blocks == 0) continue;  // odd strides: the planner refuses these
      const Status form = CheckOneKernel(plan->programs);
      EXPECT_TRUE(form.ok()) << form.ToString() << "\n" << name;
      ++ran;
      for (const CheckedPlan& other : kept) {
        if (ran % 7 != 0) break;
        const Status pair = VerifyPair(plan->programs, *context, other.programs, other.context, kClient);
        ASSERT_TRUE(pair.ok()) << pair.ToString() << "\n" << name;
        ++pairs;
      }
      if (kept.size() < 8) kept.push_back({plan->programs, *context});
    }
  }
  EXPECT_GT(ran, 50 / kEvery);
  EXPECT_GT(pairs, kEvery > 1 ? 0 : 20);
}

// A client's products have no halves: a launch that writes where another reads must be found.
TEST_P(Unfused, AMissingEntryInTheClientIsFound) {
  const int world = GetParam();
  OpRequest r;
  r.op = Op::kAllGatherMatmul;
  r.operands = {MakeOperand(Role::kA, DType::kBf16, {16, 32}), MakeOperand(Role::kB, DType::kBf16, {32, 8}),
                MakeOperand(Role::kC, DType::kBf16, {16 * world, 8})};
  const std::vector<OpRequest> requests(static_cast<size_t>(world), r);
  GroupContext group = H200s(world);
  group.placement = PlanPlacement::kClient;
  auto plan = PlanBy(requests, group, Algorithm::kSm);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const auto context = ContextOf(requests);
  ASSERT_TRUE(context.ok());
  EXPECT_TRUE(VerifyPrograms(plan->programs, *context, {.in_client = true}).ok());
  int dropped = 0;
  for (RankProgram& program : plan->programs) {
    for (Step& step : program.steps) {
      auto* collective = std::get_if<CollectiveStep>(&step.work);
      if (collective == nullptr) continue;
      for (Step& part : collective->expansion) {
        if (part.label != "entry") continue;
        part.work = NopStep{};
        ++dropped;
      }
    }
  }
  EXPECT_EQ(dropped, world * (world - 1));
  const Status mutant = VerifyPrograms(plan->programs, *context, {.in_client = true});
  EXPECT_FALSE(mutant.ok());
}

// Too large for the workspace, where peers may write only after an entry exchange.
TEST_P(Unfused, RunsInTheBulkArea) {
  const int world = GetParam();
  const int64_t rows = 1536 * world, k = 4096, n = 8192;
  for (Op op : kUnfusedOps) {
    const bool gathers = op == Op::kAllGatherMatmul;
    for (bool symmetric : {false, true}) {
      OpRequest r;
      r.op = op;
      r.operands = {MakeOperand(Role::kA, DType::kF32, {gathers ? 2 * rows / world : rows, k}),
                    MakeOperand(Role::kB, DType::kF32, {k, n}),
                    MakeOperand(Role::kC, DType::kF32,
                                {gathers                          ? 2 * rows
                                 : op == Op::kMatmulReduceScatter ? rows / world
                                                                  : rows,
                                 n},
                                symmetric)};
      if (gathers) r.operands.push_back(MakeOperand(Role::kGatheredA, DType::kF32, {2 * rows, k}, symmetric));
      const std::vector<OpRequest> requests(static_cast<size_t>(world), r);
      for (Algorithm collective : CollectivesOf(op)) {
        if (collective == Algorithm::kLowLatency || collective == Algorithm::kNccl) continue;
        auto plan = PlanBy(requests, ReferenceSwitchGroup(world), collective);
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        CheckOptions options;
        options.seeds = {};
        EXPECT_EQ(CheckPlan(*plan, requests, options), "")
            << OpName(op) << " by " << AlgorithmName(collective);
        // A symmetric operand needs no copy in the bulk area; only the product and partial sums may.
        EXPECT_EQ(plan->bulk_bytes == 0, symmetric && gathers)
            << OpName(op) << " by " << AlgorithmName(collective);
        if (collective == Algorithm::kCopyEngine) {
          EXPECT_EQ(Kernel(plan->programs[0]), nullptr);
        } else {
          ASSERT_NE(Kernel(plan->programs[0]), nullptr);
          EXPECT_GT(Kernel(plan->programs[0])->blocks, 0) << "no kernel";
        }
      }
    }
  }
}

// Row-wise scales travel in the same kernel as A, as bytes.
TEST_P(Unfused, ScalesTravelWithA) {
  const int world = GetParam();
  const int64_t rows = 24;
  OpRequest r;
  r.op = Op::kAllGatherMatmul;
  r.operands = {
      MakeOperand(Role::kA, DType::kF8E4M3, {rows, 16}), MakeOperand(Role::kB, DType::kF8E4M3, {16, 8}),
      MakeOperand(Role::kC, DType::kBf16, {rows * world, 8}),
      MakeOperand(Role::kScaleA, DType::kF32, {rows, 1}), MakeOperand(Role::kScaleB, DType::kF32, {1, 8})};
  r.algorithm = Algorithm::kUnfused;
  const std::vector<OpRequest> requests(static_cast<size_t>(world), r);
  OperationPlan plan;
  EXPECT_EQ(CheckRequests(requests, H200s(world), {}, &plan), "");
  EXPECT_EQ(plan.scale_mode, "row_wise_sharded");
  ASSERT_NE(Kernel(plan.programs[0]), nullptr);
  EXPECT_EQ(Kernel(plan.programs[0])->algorithm, Algorithm::kSm);
  EXPECT_GT(Kernel(plan.programs[0])->blocks, 0) << "no kernel";
  // A transposed A has no bytes in a row: still right, step by step.
  std::vector<OpRequest> strided = requests;
  for (OpRequest& request : strided) request.operands[0].spec.strides = {1, rows};
  EXPECT_EQ(CheckRequests(strided, H200s(world)), "");
}

// Scales by blocks too, in the order in which they lie: cuBLASLt wants them by columns.
TEST_P(Unfused, BlockScalesTravelWithA) {
  const int world = GetParam();
  const int64_t rows = 24, blocks = 2;
  OpRequest r;
  r.op = Op::kAllGatherMatmul;
  r.operands = {MakeOperand(Role::kA, DType::kF8E4M3, {rows, 144}),
                MakeOperand(Role::kB, DType::kF8E4M3, {144, 8}, false, {1, 144}),
                MakeOperand(Role::kC, DType::kBf16, {rows * world, 8}),
                MakeOperand(Role::kScaleA, DType::kF32, {rows, blocks}, false, {1, rows}),
                MakeOperand(Role::kScaleB, DType::kF32, {blocks, 1}, false, {1, 4})};
  r.algorithm = Algorithm::kUnfused;
  const std::vector<OpRequest> requests(static_cast<size_t>(world), r);
  CheckOptions once;
  once.seeds = {1};
  once.launches = 2;
  OperationPlan plan;
  EXPECT_EQ(CheckRequests(requests, H200s(world), once, &plan), "");
  EXPECT_EQ(plan.scale_mode, "block_wise_sharded");
  ASSERT_NE(Kernel(plan.programs[0]), nullptr);
  EXPECT_EQ(Kernel(plan.programs[0])->algorithm, Algorithm::kSm);
  EXPECT_GT(Kernel(plan.programs[0])->blocks, 0) << "no kernel";
  for (const Step& step : plan.programs[0].steps) {
    const auto* matmul = std::get_if<MatmulStep>(&step.work);
    if (matmul == nullptr) continue;
    EXPECT_EQ(matmul->scale_a.extent, (std::vector<int64_t>{world, rows, blocks}));
    EXPECT_EQ(matmul->scale_a.stride, (std::vector<int64_t>{rows * blocks, 1, rows}));
  }
  // In the pipeline each shard's scales land as they lie.
  std::vector<OpRequest> pipeline = requests;
  for (OpRequest& request : pipeline) request.algorithm = Algorithm::kPipeline;
  EXPECT_EQ(CheckRequests(pipeline, H200s(world), once, &plan), "");
  int products = 0;
  for (const Step& step : plan.programs[0].steps) {
    const auto* matmul = std::get_if<MatmulStep>(&step.work);
    if (matmul == nullptr) continue;
    ++products;
    EXPECT_EQ(matmul->scale_a.stride, (std::vector<int64_t>{1, rows}));
  }
  EXPECT_EQ(products, world);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Unfused, testing::Values(2, 3, 4, 8));

OperationPlan MustPlanUnfused(OpRequest request, const GroupContext& group) {
  request.algorithm = Algorithm::kUnfused;
  auto plan = PlanOf(request, group);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *std::move(plan) : OperationPlan{};
}

// The product's rows, for a message of `bytes` in bf16 with 1024 columns (of the gathered A, or of the
// product).
OpRequest Sized(Op op, int world, int64_t bytes) {
  const int64_t rows = bytes / 2048;
  if (op == Op::kAllGatherMatmul) return GatherMatmul(world, rows / world, 16, 1024, 0, DType::kBf16);
  if (op == Op::kMatmulReduceScatter) return MatmulScatter(world, rows, 1024, 16, 0, DType::kBf16);
  return MatmulAllReduce(rows, 1024, 16, DType::kBf16);
}

TEST(UnfusedChoice, TakesTheCollectiveOfItsSize) {
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  const auto reason = [](Op op, int world, int64_t bytes, const GroupContext& group) {
    return MustPlanUnfused(Sized(op, world, bytes), group).reason;
  };
  for (int world : {2, 4}) {
    const GroupContext group = H200s(world);
    EXPECT_THAT(reason(Op::kAllGatherMatmul, world, 64 * kKiB, group),
                HasSubstr("all-gather by low_latency ("));
    EXPECT_THAT(reason(Op::kAllGatherMatmul, world, 4 * kMiB, group), HasSubstr("all-gather by sm ("));
    EXPECT_THAT(
        reason(Op::kAllGatherMatmul, world, 32 * kMiB, group),
        HasSubstr(world == 2
                      ? "all-gather by sm (32 MiB is within its bound of 256 MiB, as measured on these GPUs' "
                        "kind; predicted "
                      : "all-gather by copy_engine (as measured beside a product of this size; predicted "));
    EXPECT_THAT(reason(Op::kAllGatherMatmul, world, 32 * kMiB, group),
                HasSubstr(" us alone), then the product"));
    EXPECT_THAT(reason(Op::kMatmulReduceScatter, world, 32 * kMiB, group),
                HasSubstr(world == 2 ? "then reduce-scatter by copy_engine ("
                                     : "then reduce-scatter by nccl (as measured"));
    EXPECT_THAT(reason(Op::kMatmulReduceScatter, world, 96 * kMiB, group),
                HasSubstr("then reduce-scatter by copy_engine ("));
    EXPECT_THAT(reason(Op::kMatmulAllReduce, world, 16 * kMiB, group),
                HasSubstr("then all-reduce by two_shot ("));
    EXPECT_THAT(reason(Op::kMatmulAllReduce, world, 32 * kMiB, group),
                HasSubstr(world == 2 ? "then all-reduce by two_shot (" : "then all-reduce by nccl ("));
  }
  // Elsewhere as collectives go there.
  EXPECT_THAT(reason(Op::kMatmulAllReduce, 4, 32 * kMiB, SwitchGroup(4)),
              HasSubstr("all-reduce by nccl (32 MiB is above 10 MiB; predicted "));
  EXPECT_THAT(reason(Op::kMatmulAllReduce, 4, kMiB, PcieGroup(4)),
              HasSubstr("all-reduce by nccl (the default"));
  EXPECT_THAT(reason(Op::kMatmulAllReduce, 8, 64 * kKiB, MeshGroup()),
              HasSubstr("without a product beside it only"));
  GroupContext isolated = PcieGroup(4);
  isolated.topology.p2p[1][2] = isolated.topology.p2p[2][1] = false;
  EXPECT_THAT(reason(Op::kAllGatherMatmul, 4, kMiB, isolated), HasSubstr("all-gather by nccl"));
}

TEST(UnfusedChoice, NcclRunsWhenItIsAskedFor) {
  OpRequest request = Sized(Op::kMatmulReduceScatter, 2, 1 << 20);
  const OperationPlan unfused = MustPlanUnfused(request, H200s(2));
  EXPECT_THAT(ReasonAgainst(unfused, Algorithm::kNccl), HasSubstr("unfused was asked for"));
  EXPECT_TRUE(unfused.deterministic);
  EXPECT_EQ(unfused.reduction_order, "rank order, fp32");
  request.algorithm = Algorithm::kNccl;
  auto plan = PlanOf(request, H200s(2));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_FALSE(plan->fused);
  EXPECT_FALSE(plan->deterministic);
  EXPECT_EQ(plan->reduction_order, "NCCL's");
  bool nccl = false;
  for (const Step& step : plan->programs[0].steps) nccl = nccl || std::holds_alternative<NcclStep>(step.work);
  EXPECT_TRUE(nccl);
  request.on_unfused = OnUnfused::kError;
  EXPECT_EQ(PlanOf(request, H200s(2)).status().detail().reason, "UNFUSED_REFUSED");
  request.on_unfused = OnUnfused::kAllow;
  request.algorithm = Algorithm::kAuto;
  plan = PlanOf(request, H200s(2));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_THAT(ReasonAgainst(*plan, Algorithm::kNccl), HasSubstr("runs when it is asked for"));
  GroupContext without = H200s(2);
  without.nccl = false;
  request.algorithm = Algorithm::kNccl;
  EXPECT_THAT(PlanOf(request, without).status().message(), HasSubstr("NCCL is not available"));
}

// Its own kernel would be chosen by size, and cannot run beside a product: NCCL's does, or what peer access
// allows.
TEST(UnfusedChoice, AHybridCubeMeshWithoutNcclTakesTwoShotsWhereAllReachAll) {
  OpRequest request = MatmulAllReduce(16, 32, 64, DType::kBf16);
  request.algorithm = Algorithm::kUnfused;
  GroupContext group = MeshGroup();
  EXPECT_THAT(MustPlanUnfused(request, group).reason, HasSubstr("nccl"));
  group.nccl = false;
  const Status refused = PlanOf(request, group).status();
  EXPECT_THAT(
      refused.message(),
      HasSubstr("NCCL is not available, and a hybrid cube mesh has no other all-reduce beside a product"));
  group.no_nccl = "ranks share a GPU";
  EXPECT_THAT(PlanOf(request, group).status().message(),
              HasSubstr("ranks share a GPU, and a hybrid cube mesh"));
  for (auto& row : group.topology.p2p) row.fill(true);
  ASSERT_EQ(Classify(group.topology), TopologyClass::kHybridCubeMesh);
  EXPECT_THAT(MustPlanUnfused(request, group).reason,
              AllOf(HasSubstr("two_shot"), HasSubstr("ranks share a GPU")));
}

// The own copy runs beside the pushes, and the gathered A goes back beside the product.
TEST(UnfusedChoice, CopyEnginesGatherOnTwoLanes) {
  OpRequest request = Sized(Op::kAllGatherMatmul, 2, 512 << 20);
  request.operands.push_back(Tensor(Role::kGatheredA, DType::kBf16, {262144, 1024}));
  const OperationPlan plan = MustPlanUnfused(request, H200s(2));
  EXPECT_EQ(plan.lanes, 2);
  EXPECT_EQ(plan.gathered_a_bytes, uint64_t{512} << 20);
  int own = 0, other = 0;
  for (const Step& step : plan.programs[0].steps) {
    if (const auto* copy = std::get_if<CopyStep>(&step.work)) {
      EXPECT_TRUE(copy->copy_engine);
      ++(step.lane == 1 ? own : other);
    }
    EXPECT_TRUE(step.lane == 0 || !std::holds_alternative<MatmulStep>(step.work));
  }
  EXPECT_EQ(own, 2);
  EXPECT_EQ(other, 1);
  request.operands.back().symmetric = true;
  const OperationPlan direct = MustPlanUnfused(request, H200s(2));
  EXPECT_EQ(direct.gathered_a_bytes, 0u);
  EXPECT_EQ(direct.workspace_bytes + direct.bulk_bytes, 0u);
}

}  // namespace
}  // namespace tandem::plan
