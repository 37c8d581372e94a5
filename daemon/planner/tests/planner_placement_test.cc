// Placement: which plans the client can run, what is chosen when it must, and the reasons
// (docs/client-placement.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/choice/placement.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/tests/planner_fixtures.h"
#include "program/kernel_phases.h"
#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Result<OperationPlan> PlanIn(PlanPlacement placement, const OpRequest& request) {
  GroupContext group = SwitchGroup(4);
  group.placement = placement;
  return PlanOf(request, group);
}

OpRequest AllReduceBy(Algorithm algorithm, int64_t elements) {
  OpRequest request = AllReduce(elements);
  request.algorithm = algorithm;
  return request;
}

TEST(Placement, AutoIsTheEngineOnTheHostBackend) {
  auto plan = PlanIn(PlanPlacement::kAuto, AllReduceBy(Algorithm::kOneShot, 1024));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->placement, PlanPlacement::kEngine);
  EXPECT_EQ(plan->placement_reason,
            "auto takes the engine on the host backend; the client could run this plan");
  plan = PlanIn(PlanPlacement::kEngine, AllReduceBy(Algorithm::kCopyEngine, 1024));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->placement, PlanPlacement::kEngine);
  EXPECT_EQ(plan->placement_reason,
            "asked for; the client cannot run this plan: rank 0 step 0 (part to owner 1): touches a peer "
            "outside the kernel");
}

TEST(Placement, TheClientRunsOneKernel) {
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    for (int64_t elements : {0, 1, 1000, 20 << 20}) {
      const OpRequest request = AllReduceBy(algorithm, elements);
      const auto plan = PlanIn(PlanPlacement::kClient, request);
      ASSERT_TRUE(plan.ok()) << elements << ": " << plan.status().ToString();
      EXPECT_EQ(plan->placement, PlanPlacement::kClient);
      EXPECT_EQ(plan->placement_reason, "asked for");
      const auto context = ContextOf(OnAllRanks(request, 4));
      ASSERT_TRUE(context.ok());
      EXPECT_TRUE(VerifyPrograms(plan->programs, *context, {.in_client = true}).ok());
    }
  }
}

// Gathers, and sums of floating-point types, in the client on CUDA. Engines and integers have packets with
// launch numbers.
TEST(Placement, GathersAndSumsOfTheClientTravelInDensePackets) {
  GroupContext group = SwitchGroup(4);
  group.packet_kernels = true;
  group.client_kernels = ClientKernels::kProducts;
  const auto collective = [&](PlanPlacement placement, OpRequest request) {
    request.algorithm = Algorithm::kLowLatency;
    group.placement = placement;
    const auto plan = PlanOf(request, group);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return plan.ok() ? std::get<CollectiveStep>(plan->programs[1].steps[0].work) : CollectiveStep{};
  };
  const OpRequest small = AllReduceBy(Algorithm::kLowLatency, 4096);
  const CollectiveStep in_client = collective(PlanPlacement::kClient, small);
  EXPECT_TRUE(in_client.dense);
  EXPECT_GT(in_client.blocks, 0);
  EXPECT_FALSE(collective(PlanPlacement::kEngine, small).dense);
  EXPECT_FALSE(collective(PlanPlacement::kClient, AllReduce(1024, DType::kI32)).dense);
  for (const DType type : {DType::kBf16, DType::kI64, DType::kF8E4M3}) {
    const OpRequest gather =
        Request(Op::kAllGather, {Tensor(Role::kInput, type, {64}), Tensor(Role::kOutput, type, {256})});
    EXPECT_TRUE(collective(PlanPlacement::kClient, gather).dense);
    EXPECT_FALSE(collective(PlanPlacement::kEngine, gather).dense);
  }
  const OpRequest scatter = Request(Op::kReduceScatter, {Tensor(Role::kInput, DType::kF16, {8192}),
                                                         Tensor(Role::kOutput, DType::kF16, {2048})});
  EXPECT_TRUE(collective(PlanPlacement::kClient, scatter).dense);
  // More fits than beside launch numbers. Two shots halve what a slot must hold.
  const OpRequest large = AllReduce(1 << 20, DType::kBf16);
  const CollectiveStep two = collective(PlanPlacement::kClient, large);
  EXPECT_TRUE(two.dense);
  EXPECT_EQ(two.shots, 2);
  EXPECT_GT(two.blocks, kMaxKernelBlocks);
  EXPECT_LE(two.blocks, kMaxDenseBlocks);
  group.placement = PlanPlacement::kEngine;
  OpRequest asked = large;
  asked.algorithm = Algorithm::kLowLatency;
  EXPECT_EQ(PlanOf(asked, group).status().code(), Code::kFailedPrecondition);
}

TEST(Placement, TheClientRefusesWithTheReason) {
  const Status lanes = PlanIn(PlanPlacement::kClient, AllReduceBy(Algorithm::kCopyEngine, 1024)).status();
  EXPECT_EQ(lanes.code(), Code::kFailedPrecondition);
  EXPECT_EQ(lanes.detail().reason, "NOT_ONE_KERNEL");
  EXPECT_EQ(lanes.detail().field, "placement");
  EXPECT_THAT(lanes.message(), StartsWith("placement = client: copy_engine: rank 0 step 0"));
  EXPECT_THAT(lanes.message(), EndsWith("touches a peer outside the kernel"));
  const Status meeting = PlanIn(PlanPlacement::kClient, Request(Op::kEmpty, {})).status();
  EXPECT_EQ(meeting.code(), Code::kFailedPrecondition);
  EXPECT_THAT(meeting.message(), HasSubstr("no kernel meets the peers"));
}

// An engine's start is a barrier; without it the ranks meet in a kernel.
TEST(Placement, ABarrierInTheClientIsAKernel) {
  const OpRequest request = Request(Op::kBarrier, {});
  const auto plan = PlanIn(PlanPlacement::kClient, request);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->placement, PlanPlacement::kClient);
  ASSERT_EQ(plan->programs[0].steps.size(), 1u);
  EXPECT_EQ(std::get<CollectiveStep>(plan->programs[0].steps[0].work).blocks, 1);
  EXPECT_TRUE(PlanIn(PlanPlacement::kEngine, request)->programs[0].steps.empty());
}

TEST(Placement, ClientsOfCudaWithoutCublasltLaunchKernelsAlone) {
  GroupContext group = SwitchGroup(4);
  group.client_kernels = ClientKernels::kCollectives;
  group.placement = PlanPlacement::kClient;
  const auto collective = PlanOf(AllReduce(64), group);
  ASSERT_TRUE(collective.ok()) << collective.status().ToString();
  EXPECT_EQ(collective->placement, PlanPlacement::kClient);
  OpRequest product = MatmulAllReduce(8, 256, 256);
  product.algorithm = Algorithm::kUnfused;
  const Status refused = PlanOf(product, group).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "NOT_ONE_KERNEL");
  EXPECT_THAT(refused.message(), HasSubstr("on CUDA clients need cuBLASLt in the process of every rank"));
  group.client_kernels = ClientKernels::kAll;
  EXPECT_TRUE(PlanOf(product, group).ok());
}

TEST(Placement, AutoOnCudaTakesTheClientWhereTheHandOverCounts) {
  GroupContext group = SwitchGroup(4);
  group.client_kernels = ClientKernels::kCollectives;
  const auto small = PlanOf(AllReduce(1024), group);
  ASSERT_TRUE(small.ok()) << small.status().ToString();
  EXPECT_EQ(small->placement, PlanPlacement::kClient);
  EXPECT_THAT(small->placement_reason, StartsWith("auto: on the caller's stream "));
  // No text has a time that no plan has.
  EXPECT_THAT(small->placement_reason, HasSubstr(MicrosecondsText(small->predicted_us)));
  const auto large = PlanOf(AllReduce(256 << 20), group);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->placement, PlanPlacement::kEngine) << large->placement_reason;
  const auto product = PlanOf(GatherMatmul(4, 2048, 2048, 2048), group);
  ASSERT_TRUE(product.ok());
  EXPECT_EQ(product->placement, PlanPlacement::kEngine);
  EXPECT_THAT(product->placement_reason,
              StartsWith("auto: the caller's stream would save less than 3 % of "));
}

TEST(Placement, OfARequestGoesBeforeTheGroups) {
  GroupContext group = SwitchGroup(4);
  OpRequest request = AllReduce(1024);
  for (const PlanPlacement of_group :
       {PlanPlacement::kAuto, PlanPlacement::kEngine, PlanPlacement::kClient}) {
    group.placement = of_group;
    for (const PlanPlacement asked : {PlanPlacement::kEngine, PlanPlacement::kClient}) {
      request.placement = asked;
      EXPECT_EQ(MustPlan(request, group).placement, asked);
    }
    request.placement = PlanPlacement::kAuto;
    EXPECT_EQ(MustPlan(request, group).placement,
              of_group == PlanPlacement::kAuto ? PlanPlacement::kEngine : of_group);
  }
  OpRequest copies = AllReduceBy(Algorithm::kCopyEngine, 1024);
  copies.placement = PlanPlacement::kClient;
  group.placement = PlanPlacement::kEngine;
  EXPECT_EQ(PlanOf(copies, group).status().detail().field, "placement");
}

TEST(Placement, NoPlanRunsInClientsThatCannot) {
  GroupContext group = SwitchGroup(2);
  group.placement = PlanPlacement::kClient;
  group.no_client_plans = "the client of rank 1 is too old";
  OpRequest request = AllReduce(1024);
  const OperationPlan plan = MustPlan(request, group);
  EXPECT_EQ(plan.placement, PlanPlacement::kEngine);
  EXPECT_EQ(plan.placement_reason, group.no_client_plans);
  request.placement = PlanPlacement::kClient;
  const Status refused = PlanOf(request, group).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "NO_CLIENT_PLANS");
  EXPECT_EQ(refused.detail().field, "placement");
  EXPECT_THAT(std::string(refused.message()), HasSubstr(group.no_client_plans));
}

// Without a shared MPS server the work of two processes takes turns.
TEST(Placement, AutoTakesTheClientWhereProcessesTakeTurns) {
  GroupContext group = SwitchGroup(4);
  group.client_kernels = ClientKernels::kCollectives;
  OpRequest request = AllReduceBy(Algorithm::kTwoShot, 64 << 20);
  EXPECT_EQ(MustPlan(request, group).placement, PlanPlacement::kEngine);
  group.kernels_take_turns = true;
  const OperationPlan plan = MustPlan(request, group);
  EXPECT_EQ(plan.placement, PlanPlacement::kClient) << plan.placement_reason;
  EXPECT_THAT(plan.placement_reason, HasSubstr("share no MPS server"));
  request = AllReduceBy(Algorithm::kCopyEngine, 64 << 20);
  EXPECT_EQ(MustPlan(request, group).placement, PlanPlacement::kEngine) << "the client has no copy engines";
}

TEST(Placement, AutoTakesTheClientInPlaceOfCopiesWhereProcessesTakeTurns) {
  GroupContext group = SwitchGroup(4);
  group.client_kernels = ClientKernels::kCollectives;
  constexpr int64_t kElements = 32 << 20;
  const OpRequest request = Request(Op::kAllGather, {Tensor(Role::kInput, DType::kBf16, {kElements}),
                                                     Tensor(Role::kOutput, DType::kBf16, {4 * kElements})});
  const OperationPlan engine = MustPlan(request, group);
  EXPECT_EQ(engine.placement, PlanPlacement::kEngine);
  EXPECT_EQ(engine.algorithm, Algorithm::kCopyEngine);
  group.kernels_take_turns = true;
  const OperationPlan client = MustPlan(request, group);
  EXPECT_EQ(client.placement, PlanPlacement::kClient) << client.placement_reason;
  EXPECT_EQ(client.algorithm, Algorithm::kSm);
}

TEST(RunsKernelsTest, CopyEnginesAndSignalsAreNone) {
  RankProgram program;
  program.steps.resize(3);
  program.steps[0].work = SignalStep{};
  program.steps[1].work = WaitStep{};
  program.steps[2].work = CopyStep{};
  EXPECT_FALSE(RunsKernels(program));
  std::get<CopyStep>(program.steps[2].work).copy_engine = false;
  EXPECT_TRUE(RunsKernels(program));
  program.steps[2].work = MatmulStep{};
  EXPECT_TRUE(RunsKernels(program));
}

// The steps of a program that are `Work`.
template <typename Work>
std::vector<const Work*> StepsOf(const RankProgram& program) {
  std::vector<const Work*> found;
  for (const Step& step : program.steps) {
    if (const auto* work = std::get_if<Work>(&step.work)) found.push_back(work);
  }
  return found;
}

// The tensor that a product writes for the collective, or reads from it, lies at one address in every launch.
TEST(Placement, ClientsOfCudaRunProductsAroundTheKernel) {
  for (int world : {2, 4}) {
    GroupContext group = SwitchGroup(world);
    group.packet_kernels = true;
    group.client_kernels = ClientKernels::kProducts;
    group.placement = PlanPlacement::kClient;
    for (OpRequest request :
         {GatherMatmul(world, 48, 96, 128, 0, DType::kBf16),
          GatherMatmul(world, 48, 96, 128, 1, DType::kBf16),
          MatmulScatter(world, 48, 96, 128, 0, DType::kBf16),
          MatmulScatter(world, 48, 96, 128, 1, DType::kF16), MatmulAllReduce(48, 96, 128, DType::kBf16),
          MatmulScatter(world, 4096, 8192, 512, 0, DType::kF32)}) {
      for (Algorithm algorithm : {Algorithm::kUnfused, Algorithm::kLowLatency}) {
        request.algorithm = algorithm;
        const auto plan = PlanOf(request, group);
        if (!plan.ok()) {
          EXPECT_EQ(plan.status().detail().reason, "ALGORITHM_REFUSED") << plan.status().ToString();
          continue;
        }
        EXPECT_EQ(plan->placement, PlanPlacement::kClient);
        EXPECT_EQ(plan->algorithm, algorithm);
        EXPECT_EQ(Simulate(*plan, OnAllRanks(request, world)), "") << plan->summary;
        for (const RankProgram& program : plan->programs) {
          EXPECT_EQ(StepsOf<CollectiveStep>(program).size(), 1u);
          const std::vector<const MatmulStep*> products = StepsOf<MatmulStep>(program);
          EXPECT_GE(products.size(), 1u);
          for (const MatmulStep* product : products) {
            for (const View* view : {&product->a, &product->b, &product->c}) {
              EXPECT_NE(view->ref.space, Space::kWorkspace) << plan->summary;
            }
          }
        }
        const auto context = ContextOf(OnAllRanks(request, world));
        ASSERT_TRUE(context.ok());
        const Status proof = VerifyPrograms(plan->programs, *context, {.in_client = true});
        EXPECT_TRUE(proof.ok()) << plan->summary << ": " << proof.ToString();
      }
    }
  }
}

// Bias, C's own type and a gathered A that is wanted back take further local work.
TEST(Placement, ClientsOfCudaRunSumsAndCopiesBehindTheKernel) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  group.client_kernels = ClientKernels::kProducts;
  group.placement = PlanPlacement::kClient;
  OpRequest scatter = MatmulScatter(2, 48, 96, 128, 0, DType::kBf16);
  scatter.operands.push_back(Tensor(Role::kBias, DType::kBf16, {96}));
  scatter.algorithm = Algorithm::kUnfused;
  auto plan = PlanOf(scatter, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(StepsOf<ReduceStep>(plan->programs[0]).size(), 1u);
  OpRequest gather = GatherMatmul(2, 65536, 96, 128, 0, DType::kBf16);
  gather.operands.push_back(Tensor(Role::kGatheredA, DType::kBf16, {131072, 128}));
  gather.algorithm = Algorithm::kUnfused;
  plan = PlanOf(gather, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(StepsOf<CopyStep>(plan->programs[0]).size(), 1u);
  // Packets are copied to their place by the kernel, which may be the operand.
  gather = GatherMatmul(2, 16, 96, 128, 0, DType::kBf16);
  gather.operands.push_back(Tensor(Role::kGatheredA, DType::kBf16, {32, 128}));
  gather.algorithm = Algorithm::kLowLatency;
  plan = PlanOf(gather, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(StepsOf<CopyStep>(plan->programs[0]).size(), 0u);
  EXPECT_EQ(plan->bulk_bytes, 0u);
  EXPECT_EQ(plan->gathered_a_bytes, 0u);
}

TEST(Placement, ClientsOfCudaLeaveOtherProductsToEngines) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  group.client_kernels = ClientKernels::kProducts;
  group.placement = PlanPlacement::kClient;
  const auto refuse = [&](OpRequest request, const char* why) {
    request.algorithm = Algorithm::kUnfused;
    const Status refused = PlanOf(request, group).status();
    EXPECT_EQ(refused.detail().reason, "NOT_ONE_KERNEL") << refused.ToString();
    EXPECT_EQ(refused.detail().field, "placement");
    EXPECT_THAT(refused.message(), HasSubstr(why));
  };
  OpRequest scaled = MatmulAllReduce(32, 64, 64, DType::kF8E4M3);
  scaled.operands[2].spec.dtype = DType::kBf16;
  scaled.operands.push_back(Tensor(Role::kScaleA, DType::kF32, {1}));
  scaled.operands.push_back(Tensor(Role::kScaleB, DType::kF32, {1}));
  refuse(scaled, "run products without scales only");
  OpRequest float8 = MatmulAllReduce(32, 64, 64, DType::kF8E4M3);
  float8.operands[2].spec.dtype = DType::kBf16;
  refuse(float8, "run products of f32, f16 and bf16");
  const Status alone = PlanOf(MatmulAllReduce(32, 64, 64, DType::kBf16),
                              [&] {
                                GroupContext one = SwitchGroup(1);
                                one.client_kernels = ClientKernels::kProducts;
                                one.placement = PlanPlacement::kClient;
                                return one;
                              }())
                           .status();
  EXPECT_THAT(alone.message(), HasSubstr("one rank meets nobody"));
}

// Copy engines and NCCL need an engine: the collective beside a client's product is a kernel.
TEST(Placement, TheCollectiveBesideAClientsProductIsAKernel) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  OpRequest request = GatherMatmul(2, 16384, 1024, 8192, 0, DType::kBf16);
  request.algorithm = Algorithm::kUnfused;
  const auto engine = PlanOf(request, group);
  ASSERT_TRUE(engine.ok());
  EXPECT_THAT(engine->reason, HasSubstr("all-gather by copy_engine")) << "choose another size for this test";
  group.client_kernels = ClientKernels::kProducts;
  group.placement = PlanPlacement::kClient;
  const auto client = PlanOf(request, group);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  EXPECT_THAT(client->reason, HasSubstr("all-gather by sm (the client launches kernels only"));
}

// A product of few rows: by engines it waits for the hand-over. A long one is worth an engine's overlap.
TEST(Placement, AutoOnCudaTakesTheClientForSmallProducts) {
  GroupContext group = SwitchGroup(2);
  group.packet_kernels = true;
  group.client_kernels = ClientKernels::kProducts;
  const OpRequest request = MatmulScatter(2, 154, 5120, 4096, 0, DType::kBf16);
  const auto few = PlanOf(request, group);
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_EQ(few->placement, PlanPlacement::kClient) << few->placement_reason;
  EXPECT_FALSE(few->fused);
  EXPECT_THAT(few->placement_reason, StartsWith("auto: on the caller's stream "));
  EXPECT_THAT(few->placement_reason, HasSubstr(MicrosecondsText(few->predicted_us)));
  group.placement = PlanPlacement::kEngine;
  const auto engine = PlanOf(request, group);
  ASSERT_TRUE(engine.ok());
  EXPECT_LT(few->predicted_us * 1.03, engine->predicted_us);
  group.placement = PlanPlacement::kAuto;
  const auto many = PlanOf(MatmulScatter(2, 8192, 8192, 8192, 0, DType::kBf16), group);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->placement, PlanPlacement::kEngine) << many->placement_reason;
  // A request for an overlap gets no product in front.
  OpRequest fused = request;
  fused.on_unfused = OnUnfused::kError;
  const auto overlapped = PlanOf(fused, group);
  ASSERT_TRUE(overlapped.ok()) << overlapped.status().ToString();
  EXPECT_TRUE(overlapped->fused);
}
TEST(Placement, ClientsOfCudaLaunchSkinnyProducts) {
  GroupContext group = HopperGroup(4);
  group.placement = PlanPlacement::kClient;
  for (const OpRequest& request :
       {GatherMatmul(4, 16, 1024, 2048, 0, DType::kBf16), MatmulScatter(4, 64, 1024, 2048, 0, DType::kBf16),
        MatmulAllReduce(65, 1024, 2048, DType::kBf16)}) {
    const auto plan = PlanOf(request, group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->placement, PlanPlacement::kClient);
    EXPECT_EQ(plan->algorithm, Algorithm::kFused);
    for (const RankProgram& program : plan->programs) {
      ASSERT_EQ(program.steps.size(), 1u);
      EXPECT_TRUE(std::get<CollectiveStep>(program.steps[0].work).skinny.has_value());
    }
    const auto context = ContextOf(OnAllRanks(request, 4));
    ASSERT_TRUE(context.ok());
    EXPECT_TRUE(VerifyPrograms(plan->programs, *context, {.in_client = true}).ok());
  }
  // Too many rows for one kernel that moves and multiplies.
  OpRequest large = GatherMatmul(4, 2048, 2048, 2048, 0, DType::kBf16);
  large.algorithm = Algorithm::kFused;
  const Status refused = PlanOf(large, group).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "NOT_ONE_KERNEL");
}

TEST(Placement, AutoOnCudaTakesTheClientForSkinny) {
  const GroupContext group = HopperGroup(2);
  const auto few = PlanOf(MatmulScatter(2, 64, 4096, 4096, 0, DType::kBf16), group);
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_EQ(few->placement, PlanPlacement::kClient) << few->placement_reason;
  EXPECT_EQ(few->algorithm, Algorithm::kFused);
  EXPECT_THAT(few->placement_reason, HasSubstr(MicrosecondsText(few->predicted_us)));
  const auto many = PlanOf(MatmulScatter(2, 8192, 4096, 4096, 0, DType::kBf16), group);
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->placement, PlanPlacement::kEngine) << many->placement_reason;
}

// Engines take copy engines or NCCL for a large one. The client takes the fastest that it can run.
TEST(Placement, TheClientGetsAnAlgorithmThatItCanRun) {
  const OpRequest request = AllReduceBy(Algorithm::kAuto, 64 << 20);
  const auto engine = PlanIn(PlanPlacement::kEngine, request);
  ASSERT_TRUE(engine.ok());
  ASSERT_NE(engine->algorithm, Algorithm::kTwoShot) << "choose another size for this test";
  const auto plan = PlanIn(PlanPlacement::kClient, request);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(plan->placement, PlanPlacement::kClient);
  EXPECT_THAT(plan->reason,
              StartsWith("the client can run it; " + std::string(AlgorithmName(engine->algorithm)) +
                         ", the choice of engines: rank 0 step 0"));
}

}  // namespace
}  // namespace tandem::plan
