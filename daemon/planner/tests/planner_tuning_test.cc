// The tuning table in memory, and the choices that it makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/cost/measured.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/tests/planner_fixtures.h"
#include "daemon/planner/tuning/tuning_table.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kWorld = 4;

std::vector<OpRequest> TunedGather(int64_t rows, int64_t n = 512, int64_t k = 256) {
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.operands = {{Role::kA, {DType::kBf16, {rows / kWorld, k}, {}}, false, -1},
                      {Role::kB, {DType::kBf16, {k, n}, {}}, false, -1},
                      {Role::kC, {DType::kBf16, {rows, n}, {}}, false, -1}};
  return std::vector<OpRequest>(kWorld, request);
}

std::vector<OpRequest> TunedAllReduce(int64_t elements) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {{Role::kInput, {DType::kF32, {elements}, {}}, false, -1},
                      {Role::kOutput, {DType::kF32, {elements}, {}}, false, -1}};
  return std::vector<OpRequest>(kWorld, request);
}

TuningCandidate Measurement(Algorithm algorithm, double us, int steps = 0, int lanes = 0) {
  return {.algorithm = algorithm,
          .steps = steps,
          .lanes = lanes,
          .samples = 9,
          .median_us = us,
          .p10_us = us * 0.9,
          .p90_us = us * 1.1,
          .refused = {}};
}

TuningCandidate Refused(Algorithm algorithm, const std::string& why) {
  TuningCandidate candidate;
  candidate.algorithm = algorithm;
  candidate.refused = why;
  return candidate;
}

class Tuning : public testing::Test {
 protected:
  Tuning() {
    group_.topology = EmulatedTopology(kWorld);
    group_.gpu_model = "model";
    group_.tuning = &table_;
  }

  // Puts what was measured for these requests.
  void Put(const std::vector<OpRequest>& requests, std::vector<TuningCandidate> candidates) {
    Result<Problem> problem = MakeProblem(requests, group_);
    ASSERT_TRUE(problem.ok()) << problem.status().ToString();
    TuningEntry entry{TuningKeyOf(*problem),  TuningShapeOf(*problem),
                      "2026-01-31T12:00:00Z", "0.1.0",
                      std::move(candidates),  "tuning.toml"};
    Status checked = CheckTuningEntry(&entry);
    ASSERT_TRUE(checked.ok()) << checked.ToString();
    table_.Put(std::move(entry));
  }

  OperationPlan Must(const std::vector<OpRequest>& requests) {
    Result<OperationPlan> plan = MakePlan(requests, group_);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return plan.ok() ? *std::move(plan) : OperationPlan{};
  }

  TuningTable table_;
  GroupContext group_;
};

// A product beside one kernel is no fusion, and yet one measurement's word against another's; fused asked for
// stays fused.
TEST_F(Tuning, AProductBesideOneKernelIsTakenWhereItWasMeasured) {
  group_.packet_kernels = true;
  std::vector<OpRequest> requests = TunedGather(512);
  Put(requests, {Measurement(Algorithm::kPipeline, 40), Measurement(Algorithm::kLowLatency, 50)});
  EXPECT_EQ(Must(requests).algorithm, Algorithm::kPipeline);
  Put(requests, {Measurement(Algorithm::kLowLatency, 20), Measurement(Algorithm::kPipeline, 50)});
  const OperationPlan plan = Must(requests);
  EXPECT_EQ(plan.algorithm, Algorithm::kLowLatency);
  EXPECT_FALSE(plan.fused);
  for (OpRequest& request : requests) request.on_unfused = OnUnfused::kError;
  EXPECT_EQ(Must(requests).algorithm, Algorithm::kPipeline);
}

TEST_F(Tuning, TheMeasuredAlgorithmIsTakenWithItsParametersAndSaysSo) {
  const OperationPlan before = Must(TunedGather(4096));
  ASSERT_NE(before.algorithm, Algorithm::kRing);
  EXPECT_EQ(before.measured_us, 0);
  Put(TunedGather(4096),
      {Measurement(Algorithm::kUnfused, 90.5), Measurement(Algorithm::kRing, 70.25, 2 * kWorld, 3),
       Refused(Algorithm::kFused, "needs a Hopper")});
  const OperationPlan plan = Must(TunedGather(4096));
  EXPECT_EQ(plan.algorithm, Algorithm::kRing);
  EXPECT_EQ(plan.steps, 2 * kWorld);
  EXPECT_EQ(plan.lanes, 3);
  EXPECT_EQ(plan.measured_us, 70.25);
  EXPECT_THAT(plan.reason, HasSubstr("measured fastest: 70.2 us (predicted "));
  EXPECT_THAT(plan.reason, HasSubstr("9 rounds of 2026-01-31T12:00:00Z in tuning.toml"));
  for (const RefusedAlgorithm& refused : plan.refused) {
    if (refused.algorithm == Algorithm::kUnfused) {
      EXPECT_EQ(refused.reason, "measured 90.5 us");
      EXPECT_EQ(refused.measured_us, 90.5);
    }
    if (refused.algorithm == Algorithm::kPipeline) {
      EXPECT_EQ(refused.reason, "not among what was measured");
    }
    if (refused.algorithm == Algorithm::kFused) {
      EXPECT_THAT(refused.reason, HasSubstr("Hopper"));
    }
  }
}

// Each placement has separate times, and auto compares them.
TEST_F(Tuning, TimesOfTheClientAreForTheClient) {
  group_.client_kernels = ClientKernels::kProducts;
  std::vector<OpRequest> in_client = TunedAllReduce(1 << 20), by_engine = in_client, either = in_client;
  for (OpRequest& request : in_client) request.placement = PlanPlacement::kClient;
  for (OpRequest& request : by_engine) request.placement = PlanPlacement::kEngine;
  Put(by_engine, {Measurement(Algorithm::kCopyEngine, 30), Measurement(Algorithm::kTwoShot, 31)});
  EXPECT_EQ(Must(in_client).measured_us, 0);
  Put(in_client, {Measurement(Algorithm::kOneShot, 28), Measurement(Algorithm::kTwoShot, 40)});
  EXPECT_EQ(Must(by_engine).algorithm, Algorithm::kCopyEngine);
  EXPECT_EQ(Must(in_client).algorithm, Algorithm::kOneShot);
  EXPECT_EQ(Must(in_client).measured_us, 28);
  const OperationPlan faster = Must(either);
  EXPECT_EQ(faster.placement, PlanPlacement::kClient);
  EXPECT_EQ(faster.algorithm, Algorithm::kOneShot);
  EXPECT_THAT(faster.placement_reason, HasSubstr("was measured at 28.0 us, by the engine copy_engine 30.0"));
  // Under 3 % are not worth what the client does not promise.
  Put(in_client, {Measurement(Algorithm::kOneShot, 29.5), Measurement(Algorithm::kTwoShot, 40)});
  EXPECT_EQ(Must(either).placement, PlanPlacement::kEngine);
  EXPECT_EQ(Must(either).algorithm, Algorithm::kCopyEngine);
}

TEST_F(Tuning, WhatIsAskedForGoesBeforeTheTable) {
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 70)});
  auto requests = TunedGather(4096);
  for (OpRequest& request : requests) request.algorithm = Algorithm::kPipeline;
  const OperationPlan asked = Must(requests);
  EXPECT_EQ(asked.algorithm, Algorithm::kPipeline);
  EXPECT_EQ(asked.reason, "asked for");
  requests = TunedGather(4096);
  for (OpRequest& request : requests) request.lanes = 4;
  EXPECT_EQ(Must(requests).measured_us, 0);
}

TEST_F(Tuning, WhatThisRequestDoesNotAllowGivesWayToTheNextFastest) {
  Put(TunedGather(4096), {Measurement(Algorithm::kUnfused, 10), Measurement(Algorithm::kFused, 15),
                          Measurement(Algorithm::kRing, 20)});
  auto requests = TunedGather(4096);
  for (OpRequest& request : requests) request.on_unfused = OnUnfused::kError;
  const OperationPlan plan = Must(requests);  // no fused kernels here
  EXPECT_EQ(plan.algorithm, Algorithm::kRing);
  EXPECT_THAT(plan.reason, HasSubstr("measured fastest of those that can run: 20.0 us"));
  // A measurement is no permission: what runs only when it is asked for is not chosen by its time.
  group_.fused_kernels = true;
  group_.fused_by_choice = false;
  const OperationPlan still = Must(requests);
  EXPECT_EQ(still.algorithm, Algorithm::kRing);
  for (const RefusedAlgorithm& refused : still.refused) {
    if (refused.algorithm == Algorithm::kFused) {
      EXPECT_THAT(refused.reason, HasSubstr("measured 15.0 us; runs when"));
    }
  }
  group_.fused_by_choice = true;
  EXPECT_EQ(Must(requests).algorithm, Algorithm::kFused);
  group_.fused_kernels = false;
  // Nothing that was measured can run: as if there were no table.
  TuningTable only_fused;
  std::swap(table_, only_fused);
  Put(TunedGather(4096), {Measurement(Algorithm::kFused, 15)});
  EXPECT_EQ(Must(TunedGather(4096)).measured_us, 0);
}

TEST_F(Tuning, AWarningOfUnfusedNamesTheTimes) {
  Put(TunedGather(4096), {Measurement(Algorithm::kUnfused, 10), Measurement(Algorithm::kRing, 20)});
  auto requests = TunedGather(4096);
  for (OpRequest& request : requests) request.on_unfused = OnUnfused::kWarn;
  const OperationPlan plan = Must(requests);
  EXPECT_EQ(plan.algorithm, Algorithm::kUnfused);
  ASSERT_FALSE(plan.warnings.empty());
  EXPECT_THAT(plan.warnings[0], HasSubstr("ring: measured 20.0 us"));
}

TEST_F(Tuning, ThresholdsOfCollectivesGiveWayToMeasurements) {
  ASSERT_EQ(Must(TunedAllReduce(1024)).algorithm, Algorithm::kOneShot);
  Put(TunedAllReduce(1024), {Measurement(Algorithm::kNccl, 5), Measurement(Algorithm::kOneShot, 6)});
  const OperationPlan plan = Must(TunedAllReduce(1024));
  EXPECT_EQ(plan.algorithm, Algorithm::kNccl);
  EXPECT_EQ(Must(TunedAllReduce(1 << 20)).measured_us, 0) << "a thousand times the size";
}

TEST_F(Tuning, TheExactShapeComesBeforeTheNearestOne) {
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 40)});
  Put(TunedGather(5120), {Measurement(Algorithm::kUnfused, 50)});
  EXPECT_EQ(Must(TunedGather(4096)).algorithm, Algorithm::kRing);
  EXPECT_EQ(Must(TunedGather(5120)).algorithm, Algorithm::kUnfused);
  const OperationPlan low = Must(TunedGather(4160)), high = Must(TunedGather(5056));
  EXPECT_EQ(low.algorithm, Algorithm::kRing);
  EXPECT_EQ(high.algorithm, Algorithm::kUnfused);
  EXPECT_THAT(high.reason, HasSubstr("at 5120x512x256, the nearest measured"));
}

TEST_F(Tuning, ABucketEndsAtAFactorOfTheSquareRootOfTwo) {
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 40)});
  EXPECT_GT(Must(TunedGather(5792)).measured_us, 0);  // 4096 · √2 = 5792.6
  EXPECT_EQ(Must(TunedGather(5796)).measured_us, 0);
  EXPECT_GT(Must(TunedGather(2900)).measured_us, 0);  // 4096 / √2 = 2896.3
  EXPECT_EQ(Must(TunedGather(2892)).measured_us, 0);
  EXPECT_EQ(Must(TunedGather(4096, 1024)).measured_us, 0) << "every extent counts";
}

TEST_F(Tuning, NothingOfTheKeyMayDiffer) {
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 40)});
  auto measured = [&](const std::vector<OpRequest>& requests) { return Must(requests).measured_us > 0; };
  ASSERT_TRUE(measured(TunedGather(4096)));
  auto requests = TunedGather(4096);
  for (OpRequest& request : requests) {
    for (Operand& operand : request.operands) operand.spec.dtype = DType::kF16;
  }
  EXPECT_FALSE(measured(requests));
  group_.gpu_model = "another";
  EXPECT_FALSE(measured(TunedGather(4096)));
  group_.gpu_model.clear();
  EXPECT_FALSE(measured(TunedGather(4096)));
  group_.gpu_model = "model";
  group_.tuning = nullptr;
  EXPECT_FALSE(measured(TunedGather(4096)));
}

// It gains little by them, beside what parts the algorithms. A collective does: peers write where it wants
// its result.
TEST_F(Tuning, AProductWithSymmetricOperandsGoesByTheOneWithoutUntilItIsMeasured) {
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 40)});
  Put(TunedAllReduce(1024), {Measurement(Algorithm::kNccl, 5)});
  const auto symmetric = [](std::vector<OpRequest> requests) {
    for (OpRequest& request : requests) request.operands.back().symmetric = true;
    return requests;
  };
  const OperationPlan plan = Must(symmetric(TunedGather(4096)));
  EXPECT_EQ(plan.algorithm, Algorithm::kRing);
  EXPECT_THAT(plan.reason, HasSubstr(", without symmetric operands; 9 rounds"));
  EXPECT_TRUE(Unmeasured(symmetric(TunedGather(4096)), group_).has_value())
      << "a measurement of its own is wanted all the same";
  EXPECT_EQ(Must(symmetric(TunedAllReduce(1024))).measured_us, 0);
  Put(symmetric(TunedGather(4096)), {Measurement(Algorithm::kPipeline, 30)});
  const OperationPlan own = Must(symmetric(TunedGather(4096)));
  EXPECT_EQ(own.algorithm, Algorithm::kPipeline);
  EXPECT_THAT(own.reason, Not(HasSubstr("without symmetric")));
}

// Kernels read B's rows about as fast as its columns. fp8 is transposed before, at each launch.
TEST_F(Tuning, AProductGoesByTheOneWhoseBLiesOtherwiseUntilItIsMeasured) {
  const auto placed = [](std::vector<OpRequest> requests, bool rows, bool symmetric = false) {
    for (OpRequest& request : requests) {
      Operand& b = request.operands[1];
      if (!rows) b.spec.strides = {1, b.spec.shape[0]};
      request.operands.back().symmetric = symmetric;
    }
    return requests;
  };
  const auto float8 = [](std::vector<OpRequest> requests) {
    for (OpRequest& request : requests) {
      for (int i : {0, 1}) request.operands[static_cast<size_t>(i)].spec.dtype = DType::kF8E4M3;
    }
    return requests;
  };
  Put(placed(TunedGather(4096), true), {Measurement(Algorithm::kRing, 40)});
  Put(placed(TunedGather(8192), false), {Measurement(Algorithm::kRing, 80)});
  Put(placed(float8(TunedGather(4096)), true), {Measurement(Algorithm::kRing, 40)});
  const OperationPlan columns = Must(placed(TunedGather(4096), false));
  EXPECT_EQ(columns.algorithm, Algorithm::kRing);
  EXPECT_THAT(columns.reason, HasSubstr(", with B's rows contiguous; 9 rounds"));
  const OperationPlan rows = Must(placed(TunedGather(8192), true));
  EXPECT_EQ(rows.algorithm, Algorithm::kRing);
  EXPECT_THAT(rows.reason, HasSubstr(", with B's columns contiguous; 9 rounds"));
  EXPECT_THAT(Must(placed(TunedGather(8192), true, true)).reason,
              HasSubstr(", with B's columns contiguous, without symmetric operands; 9 rounds"));
  EXPECT_TRUE(Unmeasured(placed(TunedGather(4096), false), group_).has_value());
  EXPECT_GT(Must(placed(float8(TunedGather(4096)), true)).measured_us, 0);
  EXPECT_EQ(Must(placed(float8(TunedGather(4096)), false)).measured_us, 0);
  Put(placed(TunedGather(4096), false), {Measurement(Algorithm::kPipeline, 30)});
  const OperationPlan own = Must(placed(TunedGather(4096), false));
  EXPECT_EQ(own.algorithm, Algorithm::kPipeline);
  EXPECT_THAT(own.reason, Not(HasSubstr("contiguous")));
}

TEST_F(Tuning, WhatNoTimeDecidesIsUnmeasured) {
  auto wanted = Unmeasured(TunedGather(4096), group_);
  ASSERT_TRUE(wanted.has_value());
  EXPECT_EQ(wanted->shape, (TuningShape{4096, 512, 256}));
  EXPECT_EQ(wanted->key.op, Op::kAllGatherMatmul);
  Put(TunedGather(4096), {Measurement(Algorithm::kRing, 40)});
  EXPECT_FALSE(Unmeasured(TunedGather(4096), group_).has_value());
  EXPECT_FALSE(Unmeasured(TunedGather(4160), group_).has_value()) << "near enough";
  EXPECT_TRUE(Unmeasured(TunedGather(8192), group_).has_value());
  auto asked = TunedGather(8192);
  for (OpRequest& request : asked) request.algorithm = Algorithm::kRing;
  EXPECT_FALSE(Unmeasured(asked, group_).has_value());
  EXPECT_FALSE(Unmeasured(TunedAllReduce(0), group_).has_value());
  group_.tuning = nullptr;
  EXPECT_FALSE(Unmeasured(TunedGather(8192), group_).has_value());
}

TEST(TuningTableTest, MergesRemovesAndFindsById) {
  auto entry = [](int64_t bytes, double us) {
    TuningEntry made;
    made.key = {"gpu", "nvswitch", 4, Op::kAllReduce, "f32 -> f32", "", ""};
    made.shape = {bytes};
    made.measured_at = "then";
    made.version = "0";
    made.candidates = {Measurement(Algorithm::kOneShot, us)};
    return made;
  };
  TuningTable shipped, own;
  shipped.Put(entry(1024, 1));
  shipped.Put(entry(8192, 2));
  own.Put(entry(8192, 3));
  own.Put(entry(8192, 4));
  EXPECT_EQ(own.size(), 1u);
  shipped.Merge(own);
  ASSERT_EQ(shipped.size(), 2u);
  EXPECT_EQ(shipped.Find(entry(0, 0).key, {8192})->candidates[0].median_us, 4);
  EXPECT_EQ(shipped.Find(entry(0, 0).key, {1024})->candidates[0].median_us, 1);
  const std::string id = TuningId(entry(1024, 0));
  EXPECT_EQ(id.size(), 16u);
  ASSERT_NE(shipped.FindId(id), nullptr);
  EXPECT_TRUE(shipped.Remove(id));
  EXPECT_FALSE(shipped.Remove(id));
  EXPECT_EQ(shipped.FindId(id), nullptr);
  EXPECT_EQ(shipped.size(), 1u);
}

TEST(TuningKeyTest, KnowsHowBLiesAndFloat8IsSummed) {
  const auto traits = [](bool fast, std::vector<int64_t> strides, DType type = DType::kF8E4M3) {
    OpRequest request =
        Request(Op::kAllGatherMatmul, {Tensor(Role::kA, type, {16, 32}), Tensor(Role::kB, type, {32, 64}),
                                       Tensor(Role::kC, DType::kBf16, {32, 64})});
    request.fast_accumulation = fast;
    request.operands[1].spec.strides = std::move(strides);
    const std::vector<OpRequest> requests(2, request);
    const GroupContext group = SwitchGroup(2);
    return TuningKeyOf(*MakeProblem(requests, group)).traits;
  };
  EXPECT_EQ(traits(true, {1, 32}), "");
  EXPECT_EQ(traits(false, {1, 32}), "exact");
  EXPECT_EQ(traits(true, {}), "b_rows");
  EXPECT_EQ(traits(false, {}), "exact b_rows");
  EXPECT_EQ(traits(true, {1, 32}, DType::kBf16), "");
  EXPECT_EQ(traits(true, {}, DType::kBf16), "b_rows");
}

TEST(TuningTableTest, AMalformedEntryIsRefused) {
  const TuningEntry good{{"gpu", "nvswitch", 4, Op::kAllReduce, "f32 -> f32", "", ""},
                         {1024},
                         "then",
                         "0",
                         {Measurement(Algorithm::kOneShot, 5), Refused(Algorithm::kNccl, "no NCCL")},
                         ""};
  auto refusal = [&good](auto change) {
    TuningEntry entry = good;
    change(entry);
    Status status = CheckTuningEntry(&entry);
    EXPECT_EQ(status.code(), status.ok() ? Code::kOk : Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_EQ(refusal([](TuningEntry&) {}), "");
  EXPECT_THAT(refusal([](TuningEntry& e) { e.key.world_size = 9; }), HasSubstr("world_size"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.key.gpu = "a\nb"; }), HasSubstr("printable"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.key.traits = std::string(300, 'x'); }), HasSubstr("longer"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.shape = {1, 2, 3}; }), HasSubstr("extents"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.shape = {0}; }), HasSubstr("positive"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates[0].algorithm = Algorithm::kRing; }),
              HasSubstr("no algorithm ring"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates[0].median_us = 100; }), HasSubstr("p10"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates[0].p10_us = -1; }), HasSubstr("p10"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates[0].refused = "both"; }),
              HasSubstr("both measured and refused"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates.erase(e.candidates.begin()); }),
              HasSubstr("no candidate"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates[1].refused.clear(); }), HasSubstr("neither"));
  EXPECT_THAT(refusal([](TuningEntry& e) { e.candidates.resize(65, e.candidates[0]); }), HasSubstr("64"));
}

}  // namespace
}  // namespace tandem::plan
