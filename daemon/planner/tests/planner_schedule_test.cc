// The schedules of single algorithms: who sends what when, on which lane, over which links, from which
// workspace.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "daemon/planner/tests/planner_fixtures.h"
#include "program/verifier/verifier.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

TEST(HybridCubeMesh, FollowsOnlyLinksThatExist) {
  const GroupContext group = MeshGroup();
  for (int64_t count :
       {1, 1000, 65536, int(9) << 20}) {  // the last one in the bulk area, with an entry exchange
    OpRequest request = AllReduce(count, DType::kF32);
    request.algorithm = Algorithm::kHybridCubeMesh;
    const auto requests = OnAllRanks(request, 8);
    auto plan = MakePlan(requests, group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(Simulate(*plan, requests), "");
    int pushes = 0;
    for (const RankProgram& program : plan->programs) {
      const auto check = [&](int peer, const Step& step) {
        EXPECT_GT(group.topology.nvlinks[program.rank][peer], 0)
            << "rank " << program.rank << " reaches " << peer << " at " << step.label;
      };
      for (const Step& step : ExpandedSteps(program)) {
        if (const auto* copy = std::get_if<CopyStep>(&step.work);
            copy && copy->dst.ref.rank != program.rank) {
          ++pushes;
          check(copy->dst.ref.rank, step);
        } else if (const auto* signal = std::get_if<SignalStep>(&step.work)) {
          check(signal->to_rank, step);
        } else if (const auto* wait = std::get_if<WaitStep>(&step.work)) {
          check(wait->from_rank, step);
        }
      }
    }
    EXPECT_EQ(pushes, 8 * 4);
  }
}

TEST(HybridCubeMesh, SumsInOneOrderOnAllRanks) {
  OpRequest request = AllReduce(10);
  request.algorithm = Algorithm::kHybridCubeMesh;
  auto plan = PlanOf(request, MeshGroup());
  ASSERT_TRUE(plan.ok());
  for (const RankProgram& program : plan->programs) {
    std::vector<const ReduceStep*> sums;
    const std::vector<Step> steps = ExpandedSteps(program);
    for (const Step& step : steps) {
      if (const auto* reduce = std::get_if<ReduceStep>(&step.work)) sums.push_back(reduce);
    }
    ASSERT_EQ(sums.size(), 2u);
    EXPECT_EQ(sums[0]->sources.size(), 4u);
    // The first quad's sum comes first: own quad sum on ranks 0 to 3, the mate's on 4 to 7.
    const bool own_first = sums[1]->sources[0] == sums[0]->dst;
    EXPECT_EQ(own_first, program.rank < 4);
  }
}

TEST(Ring, MultipliesTheNeighboursSliceFirstAndItsOwnLast) {
  const int world = 4, lanes = 3, pieces = 2;
  OpRequest request = MatmulScatter(world, 32, 4, 4);
  request.algorithm = Algorithm::kRing;
  request.lanes = lanes;
  request.steps = world * pieces;
  auto plan = PlanOf(request, SwitchGroup(world));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->steps, 8);
  EXPECT_EQ(plan->lanes, lanes);
  for (const RankProgram& program : plan->programs) {
    const int r = program.rank;
    int multiplied = 0, groups = 0;
    for (const Step& step : program.steps) {
      const int i = multiplied / world, j = multiplied % world;
      if (const auto* matmul = std::get_if<MatmulStep>(&step.work)) {
        const int owner = (r + j + 1) % world;
        EXPECT_EQ(step.lane, (i + j) % lanes);
        EXPECT_EQ(matmul->a.ref.offset, static_cast<uint64_t>((owner * 8 + i * 4) * 4 * 4));
        // The own slice is multiplied into the output and not copied.
        EXPECT_EQ(matmul->c.ref.space, owner == r ? Space::kOperand : Space::kWorkspace);
        ++multiplied;
      } else if (const auto* group = std::get_if<TransferGroupStep>(&step.work)) {
        const int sent_j = (multiplied - 1) % world;
        ASSERT_EQ(group->parts.size(), 2u);
        EXPECT_EQ(group->parts[0].peer, (r + sent_j + 1) % world);
        EXPECT_EQ(group->parts[1].peer, (r - sent_j - 1 + world) % world);
        ++groups;
      }
    }
    EXPECT_EQ(multiplied, world * pieces);
    EXPECT_EQ(groups, (world - 1) * pieces);
    EXPECT_EQ(StepKindName(program.steps.back()), "reduce");
  }
}

TEST(Ring, SendSlicesScaleWithLanesNotWithSteps) {
  const auto workspace = [](int lanes, int steps) {
    OpRequest request = MatmulScatter(4, 4096, 64, 64);
    request.algorithm = Algorithm::kRing;
    request.lanes = lanes;
    request.steps = steps;
    auto plan = PlanOf(request, SwitchGroup(4));
    EXPECT_TRUE(plan.ok());
    return plan.ok() ? plan->workspace_bytes : 0;
  };
  const uint64_t slice = 1024 * 64 * 4;
  EXPECT_EQ(workspace(1, 4), 3 * slice + slice);
  EXPECT_EQ(workspace(2, 4), 3 * slice + 2 * slice);
  EXPECT_EQ(workspace(2, 16), 3 * slice + 2 * slice / 4);
  EXPECT_EQ(workspace(4, 16), 3 * slice + 4 * slice / 4);
}

TEST(Pipeline, MultipliesOwnChunkFirstAndKeepsCopiesOnOneLane) {
  OpRequest request = GatherMatmul(4, 8, 6, 4);
  request.algorithm = Algorithm::kPipeline;
  auto plan = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->lanes, 2);
  EXPECT_EQ(plan->steps, 4);
  EXPECT_EQ(plan->bytes_moved, 3u * 8 * 4 * 4);
  for (const RankProgram& program : plan->programs) {
    std::vector<uint64_t> rows;
    for (const Step& step : program.steps) {
      EXPECT_TRUE(!std::holds_alternative<CopyStep>(step.work) || step.lane == 1);
      if (const auto* matmul = std::get_if<MatmulStep>(&step.work))
        rows.push_back(matmul->c.ref.offset / (8 * 6 * 4));
    }
    ASSERT_EQ(rows.size(), 4u);
    for (int j = 0; j < 4; ++j) EXPECT_EQ(rows[j], static_cast<uint64_t>((program.rank + j) % 4));
  }
}

TEST(Pipeline, GathersIntoASymmetricTensorInPlace) {
  OpRequest request = GatherMatmul(4, 8, 6, 4);
  request.operands.push_back(Tensor(Role::kGatheredA, DType::kF32, {32, 4}));
  request.algorithm = Algorithm::kPipeline;
  auto copied = PlanOf(request, SwitchGroup(4));
  request.operands.back().symmetric = true;
  auto in_place = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(copied.ok() && in_place.ok());
  EXPECT_EQ(copied->gathered_a_bytes, 32u * 4 * 4);
  EXPECT_GT(copied->workspace_bytes, 0u);
  EXPECT_EQ(in_place->gathered_a_bytes, 0u);
  EXPECT_EQ(in_place->workspace_bytes, 0u);
}

TEST(Wire, ExactSumsTravelAsF32AndRoundOnce) {
  OpRequest request = MatmulScatter(4, 64, 8, 8, 0, DType::kBf16);
  request.algorithm = Algorithm::kPipeline;
  auto rounded = PlanOf(request, SwitchGroup(4));
  request.wire = WireType::kF32;
  auto exact = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(rounded.ok() && exact.ok());
  EXPECT_EQ(rounded->wire_type, "bf16");
  EXPECT_EQ(rounded->roundings, 2);
  EXPECT_EQ(exact->wire_type, "f32");
  EXPECT_EQ(exact->roundings, 1);
  EXPECT_EQ(exact->bytes_moved, 2 * rounded->bytes_moved);
}

TEST(Bulk, IsUsedAboveTheWorkspaceBound) {
  // One-shot on two ranks needs one slot of the tensor's size.
  OpRequest request = AllReduce(int64_t{8} << 20);  // 32 MiB
  request.algorithm = Algorithm::kOneShot;
  auto within = PlanOf(request, SwitchGroup(2));
  request.operands[0].spec.shape = request.operands[1].spec.shape = {(int64_t{8} << 20) + 1};
  auto above = PlanOf(request, SwitchGroup(2));
  ASSERT_TRUE(within.ok() && above.ok());
  EXPECT_EQ(within->workspace_bytes, uint64_t{32} << 20);
  EXPECT_EQ(within->bulk_bytes, 0u);
  EXPECT_EQ(above->workspace_bytes, 0u);
  EXPECT_GT(above->bulk_bytes, uint64_t{32} << 20);
}

// Words that rank 0's fused kernel waits for, of the peers' slices.
int AwaitedSlices(int world, int64_t m, int64_t n, int64_t k, PlanPlacement placement) {
  OpRequest request = MatmulScatter(world, m, n, k, 0, DType::kBf16);
  request.algorithm = Algorithm::kFused;
  GroupContext group = HopperGroup(world);
  group.client_kernels = ClientKernels::kFused;
  group.placement = placement;
  const auto plan = PlanOf(request, group);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return -1;
  EXPECT_EQ(plan->placement, placement);
  const auto context = ContextOf(OnAllRanks(request, world));
  EXPECT_TRUE(context.ok());
  if (!context.ok()) return -1;
  const bool in_client = placement == PlanPlacement::kClient;
  const Status proof = VerifyPrograms(plan->programs, *context, {.in_client = in_client});
  EXPECT_TRUE(proof.ok()) << proof.ToString();
  int words = 0;
  for (const Step& step : plan->programs[0].steps) {
    const auto* kernel = std::get_if<CollectiveStep>(&step.work);
    if (kernel == nullptr) continue;
    for (const Step& part : kernel->expansion) words += part.label.starts_with("slice from") ? 1 : 0;
  }
  return words;
}

TEST(FusedSchedule, ScattersOfTwoRanksSignalEachBand) {
  for (const PlanPlacement placement : {PlanPlacement::kEngine, PlanPlacement::kClient}) {
    EXPECT_EQ(AwaitedSlices(2, 1024, 12288, 4096, placement), 3) << "16 tiles of 256 columns each";
    EXPECT_EQ(AwaitedSlices(2, 8192, 8192, 14336, placement), 8) << "four tiles each";
    EXPECT_EQ(AwaitedSlices(2, 1024, 16384, 1024, placement), 1) << "short rows of A";
    EXPECT_EQ(AwaitedSlices(4, 4096, 8192, 7168, placement), 3) << "one of each peer";
  }
}

TEST(Planning, OfEightRanksIsQuick) {
  OpRequest request = GatherMatmul(8, 128, 512, 512);
  request.algorithm = Algorithm::kPipeline;
  const auto requests = OnAllRanks(request, 8);
  const GroupContext group = SwitchGroup(8);
  std::vector<double> milliseconds;
  for (int i = 0; i < 51; ++i) {
    // Processor time: what others do to the machine meanwhile is not the planner's.
    const std::clock_t begin = std::clock();
    ASSERT_TRUE(CompareRequests(requests).ok());
    ASSERT_TRUE(MakePlan(requests, group).ok());
    milliseconds.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  // Sanitizers included; the benchmark holds the figure itself.
  EXPECT_LT(milliseconds[milliseconds.size() / 2], 20.0);
}

TEST(Listing, NamesStepsLanesAndPlaces) {
  OpRequest request = GatherMatmul(2, 8, 6, 4);
  request.algorithm = Algorithm::kPipeline;
  auto plan = PlanOf(request, SwitchGroup(2));
  ASSERT_TRUE(plan.ok());
  const std::string listing = ListProgram(plan->programs[1]);
  EXPECT_NE(listing.find("rank 1 of 2"), std::string::npos) << listing;
  EXPECT_NE(listing.find("1 lane 1  copy  op0@1+0 f32[8, 4] -> ws@0+0  128 B (ce)  # chunk 1 to 0"),
            std::string::npos)
      << listing;
  EXPECT_NE(listing.find("wait  word 0 from rank 0"), std::string::npos) << listing;
  request = AllReduce(8);
  request.algorithm = Algorithm::kOneShot;
  const std::string one_shot = ListProgram(PlanOf(request, SwitchGroup(2))->programs[0]);
  EXPECT_NE(one_shot.find("collective  all_reduce by one_shot"), std::string::npos) << one_shot;
  EXPECT_NE(one_shot.find("  0.0 lane 0  copy"), std::string::npos) << one_shot;
}

}  // namespace
}  // namespace tandem::plan
