// What `auto` becomes on CUDA behind NVSwitches, against what was measured there, and that nothing else moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/bounds.h"
#include "daemon/planner/choice.h"
#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

GroupContext H200s(int world) {
  GroupContext group = SwitchGroup(world);
  group.packet_kernels = true;
  return group;
}

Plan MustPlan(const OpRequest& request, const GroupContext& group) {
  auto plan = PlanOf(request, group);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return std::move(*plan);
}

// What `algorithm` is predicted to take, chosen or not.
double Predicted(const Plan& plan, Algorithm algorithm) {
  if (plan.algorithm == algorithm) return plan.predicted_us;
  for (const RefusedAlgorithm& refused : plan.refused) {
    if (refused.algorithm == algorithm) return refused.predicted_us;
  }
  return 0;
}

// Medians in microseconds of bench/results/gpu-4xH200-peers.jsonl and gpu-2of4xH200-peers.jsonl; 0: not measured.
struct Case {
  Op op;
  DType dtype;
  int world;
  int64_t rows, n, k;  // of the whole product, k of one rank
  double pipeline, ring, unfused;
};
constexpr Case kCases[] = {
    {Op::kAllGatherMatmul, DType::kBf16, 4, 2048, 7168, 8192, 456, 456, 753},
    {Op::kAllGatherMatmul, DType::kBf16, 4, 8192, 7168, 8192, 1855, 1626, 1945},
    {Op::kAllGatherMatmul, DType::kF8E4M3, 4, 2048, 7168, 8192, 270, 0, 563},
    {Op::kAllGatherMatmul, DType::kF8E4M3, 4, 8192, 7168, 8192, 949, 0, 1255},
    {Op::kAllGatherMatmul, DType::kBf16, 2, 2048, 14336, 8192, 747, 755, 1070},
    {Op::kAllGatherMatmul, DType::kBf16, 2, 8192, 14336, 8192, 3967, 2963, 3286},
    {Op::kAllGatherMatmul, DType::kF8E4M3, 2, 2048, 14336, 8192, 434, 0, 709},
    {Op::kAllGatherMatmul, DType::kF8E4M3, 2, 8192, 14336, 8192, 2053, 0, 1941},
    {Op::kMatmulReduceScatter, DType::kBf16, 4, 2048, 8192, 7168, 421, 422, 485},
    {Op::kMatmulReduceScatter, DType::kBf16, 4, 8192, 8192, 7168, 1541, 1574, 1742},
    {Op::kMatmulReduceScatter, DType::kF8E4M3, 4, 2048, 8192, 7168, 311, 0, 407},
    {Op::kMatmulReduceScatter, DType::kF8E4M3, 4, 8192, 8192, 7168, 1116, 0, 1139},
    {Op::kMatmulReduceScatter, DType::kBf16, 2, 2048, 8192, 14336, 746, 748, 817},
    {Op::kMatmulReduceScatter, DType::kBf16, 2, 8192, 8192, 14336, 2838, 2896, 3150},
    {Op::kMatmulReduceScatter, DType::kF8E4M3, 2, 2048, 8192, 14336, 444, 0, 503},
    {Op::kMatmulReduceScatter, DType::kF8E4M3, 2, 8192, 8192, 14336, 1756, 0, 1856},
    {Op::kMatmulAllReduce, DType::kBf16, 4, 2048, 8192, 7168, 649, 0, 545},  // "pipeline" is tiled_two_shot
    {Op::kMatmulAllReduce, DType::kBf16, 4, 8192, 8192, 7168, 1915, 0, 1918},
    {Op::kMatmulAllReduce, DType::kBf16, 2, 2048, 8192, 14336, 835, 0, 871},
    {Op::kMatmulAllReduce, DType::kBf16, 2, 8192, 8192, 14336, 3028, 0, 3236},
};

OpRequest RequestOf(const Case& test) {
  const bool gather = test.op == Op::kAllGatherMatmul;
  const bool scatter = test.op == Op::kMatmulReduceScatter;
  const DType out = test.dtype == DType::kBf16 ? test.dtype : DType::kBf16;
  return Request(test.op, {Tensor(Role::kA, test.dtype, {gather ? test.rows / test.world : test.rows, test.k}),
                           Tensor(Role::kB, test.dtype, {test.k, test.n}),
                           Tensor(Role::kC, out, {scatter ? test.rows / test.world : test.rows, test.n})});
}

TEST(MeasuredChoice, AutoTakesWhatWasFastest) {
  for (const Case& test : kCases) {
    const Plan plan = MustPlan(RequestOf(test), H200s(test.world));
    SCOPED_TRACE(plan.summary + ": " + plan.reason);
    const Algorithm overlapped =
        test.op == Op::kMatmulAllReduce ? Algorithm::kTiledTwoShot : Algorithm::kPipeline;
    const auto time_of = [&](Algorithm algorithm) {
      return algorithm == overlapped ? test.pipeline : algorithm == Algorithm::kRing ? test.ring : test.unfused;
    };
    double best = 1e9;
    for (Algorithm algorithm : {overlapped, Algorithm::kRing, Algorithm::kUnfused}) {
      const double measured = time_of(algorithm);
      if (measured == 0) continue;
      best = std::min(best, measured);
      EXPECT_NEAR(Predicted(plan, algorithm) / measured, 1.0, 0.25) << AlgorithmName(algorithm);
    }
    // Where the ring was not measured it may be preferred; it was the best of the gathers of long products.
    if (plan.algorithm == Algorithm::kRing && test.ring == 0) {
      EXPECT_GT(test.pipeline, test.unfused);
      continue;
    }
    EXPECT_LE(time_of(plan.algorithm), 1.01 * best) << AlgorithmName(plan.algorithm);
  }
}

TEST(MeasuredChoice, CollectivesGoByMeasuredBounds) {
  const auto chosen = [](int64_t bytes, int world) {
    const Plan plan = MustPlan(AllReduce(bytes / 4), H200s(world));
    return plan.algorithm;
  };
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  for (int world : {2, 4}) {
    EXPECT_EQ(chosen(kKiB, world), Algorithm::kLowLatency);
    EXPECT_EQ(chosen(64 * kKiB, world), Algorithm::kLowLatency);
    EXPECT_EQ(chosen(64 * kKiB + 16, world), Algorithm::kOneShot);
    EXPECT_EQ(chosen(16 * kMiB, world), Algorithm::kTwoShot);
    EXPECT_EQ(chosen(16 * kMiB + 16, world), Algorithm::kNccl);
  }
  EXPECT_EQ(chosen(kMiB, 2), Algorithm::kOneShot);
  EXPECT_EQ(chosen(kMiB, 4), Algorithm::kTwoShot);
  const Plan plan = MustPlan(AllReduce(4 * kMiB), H200s(4));
  EXPECT_THAT(plan.reason, HasSubstr("as measured"));
  EXPECT_THAT(ReasonAgainst(plan, Algorithm::kLowLatency), HasSubstr("is above its bound of"));

  const auto moved = [](Op op, int64_t message, int world) {
    const int64_t whole = message / 2, piece = whole / world;
    const bool gather = op == Op::kAllGather;
    return MustPlan(Request(op, {Tensor(Role::kInput, DType::kBf16, {gather ? piece : whole}),
                                 Tensor(Role::kOutput, DType::kBf16, {gather ? whole : piece})}),
                    H200s(world))
        .algorithm;
  };
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    EXPECT_EQ(moved(op, 256 * kKiB, 4), Algorithm::kLowLatency);
    EXPECT_EQ(moved(op, 64 * kKiB, 2), Algorithm::kLowLatency);
    EXPECT_EQ(moved(op, 256 * kKiB, 2), Algorithm::kSm);
    EXPECT_EQ(moved(op, 16 * kMiB, 4), Algorithm::kSm);
    EXPECT_EQ(moved(op, 32 * kMiB, 4), Algorithm::kCopyEngine);
  }
  EXPECT_EQ(moved(Op::kReduceScatter, 16 * kMiB, 2), Algorithm::kCopyEngine);
  OpRequest quiet = Request(Op::kAllGather, {Tensor(Role::kInput, DType::kF32, {64}),
                                             Tensor(Role::kOutput, DType::kF32, {256})});
  quiet.low_contention = true;
  EXPECT_EQ(MustPlan(quiet, H200s(4)).algorithm, Algorithm::kCopyEngine);
}

// The host backend, other topologies and other world sizes keep the built-in bounds.
TEST(MeasuredChoice, NothingElseMoves) {
  GroupContext pcie = PcieGroup(4);
  pcie.packet_kernels = true;
  for (const GroupContext& group : {SwitchGroup(4), SwitchGroup(2), H200s(8), H200s(3)}) {
    EXPECT_EQ(MustPlan(AllReduce(1024), group).algorithm, Algorithm::kOneShot);
    EXPECT_EQ(MustPlan(AllReduce(kOneShotMaxBytes / 4), group).algorithm, Algorithm::kOneShot);
    EXPECT_EQ(MustPlan(AllReduce(kTwoShotMaxBytes / 4), group).algorithm, Algorithm::kTwoShot);
    const Plan large = MustPlan(AllReduce(kTwoShotMaxBytes / 4 + 1), group);
    EXPECT_EQ(large.algorithm, Algorithm::kNccl);
    EXPECT_THAT(large.reason, Not(HasSubstr("measured")));
  }
  EXPECT_EQ(MustPlan(AllReduce(1024), pcie).algorithm, Algorithm::kNccl);
  const Plan host = MustPlan(RequestOf(kCases[1]), SwitchGroup(4));
  EXPECT_EQ(host.algorithm, Algorithm::kPipeline);
  EXPECT_EQ(Predicted(host, Algorithm::kPipeline), Predicted(host, Algorithm::kRing));
}

}  // namespace
}  // namespace tandem::plan
