// Programs with a norm behind their sum, as the planner writes them and with mistakes in them.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "daemon/planner/tests/planner_fixtures.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

struct Planned {
  std::vector<OpRequest> requests;
  OperationPlan plan;
  VerifyContext context;
};

Planned PlanNorm(OpRequest sum, int output, Algorithm algorithm) {
  sum.algorithm = algorithm;
  const std::vector<OpRequest> requests(4, WithNorm(sum, output, true));
  return {requests, MakePlan(requests, SwitchGroup(4)).value(), ContextOf(requests).value()};
}

Planned AllReduced() { return PlanNorm(AllReduce(8), 1, Algorithm::kTwoShot); }

// The verifier's reason against a program whose norm is changed.
std::string ReasonAgainst(Planned planned, const std::function<void(NormStep*)>& change) {
  for (Step& step : planned.plan.programs[1].steps) {
    if (auto* norm = std::get_if<NormStep>(&step.work)) change(norm);
  }
  return VerifyPrograms(planned.plan.programs, planned.context).detail().reason;
}

TEST(Norms, MistakesAreFound) {
  const Planned planned = AllReduced();
  ASSERT_TRUE(VerifyPrograms(planned.plan.programs, planned.context).ok());
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->weight.extent = {7}; }), "MALFORMED");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->residual.extent = {7}; }), "MALFORMED");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->weight.dtype = DType::kBf16; }), "MALFORMED");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->sum.stride = {2}; }), "MALFORMED");
  for (const int row_blocks : {-1, 3, 16})
    EXPECT_EQ(ReasonAgainst(planned, [&](NormStep* n) { n->row_blocks = row_blocks; }), "MALFORMED");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->out = n->residual_out; }), "RACE");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->out = n->residual; }), "RACE");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->residual_out = n->sum; }), "RACE");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->residual_out.ref.rank = 0; }), "BOUNDS");
  EXPECT_EQ(ReasonAgainst(planned, [](NormStep* n) { n->weight.ref.offset = 4; }), "BOUNDS");
}

// A norm whose rows have scales that are made, or a given one.
Planned Quantized(int64_t scales) {
  OpRequest sum = AllReduce(8);
  for (Operand& operand : sum.operands) operand.spec.shape = {3, 130};
  sum.algorithm = Algorithm::kTwoShot;
  const std::vector<OpRequest> requests(4, WithQuantization(WithNorm(sum, 1, true), 1, scales));
  return {requests, MakePlan(requests, SwitchGroup(4)).value(), ContextOf(requests).value()};
}

TEST(Norms, MistakesOfQuantizationAreFound) {
  for (const int64_t scales : {0, 1, 2}) {
    const Planned planned = Quantized(scales);
    EXPECT_EQ(CheckPlan(planned.plan, planned.requests, {}), "");
    const auto reason = [&](const std::function<void(NormStep*)>& change) {
      return ReasonAgainst(planned, change);
    };
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.extent = {3, 129}; }), "MALFORMED");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.dtype = DType::kF8E5M2; }), "MALFORMED");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.stride = {131, 1}; }), "MALFORMED");
    EXPECT_EQ(reason([](NormStep* n) { n->has_quantized = false; }), "MALFORMED");
    EXPECT_EQ(reason([](NormStep* n) { n->has_static_scale = n->has_scales = false; }), "MALFORMED");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.ref = n->residual.ref; }), "RACE");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.ref = n->out.ref; }), "RACE");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.ref = n->residual_out.ref; }), "RACE");
    EXPECT_EQ(reason([](NormStep* n) { n->quantized.ref.rank = 0; }), "BOUNDS");
    if (scales == 0) {
      EXPECT_EQ(reason([](NormStep* n) { n->static_scale.dtype = DType::kBf16; }), "MALFORMED");
      EXPECT_EQ(reason([](NormStep* n) { n->static_scale.extent = {2}; }), "MALFORMED");
      EXPECT_EQ(reason([](NormStep* n) { n->static_scale.ref = n->quantized.ref; }), "RACE");
    } else {
      EXPECT_EQ(reason([](NormStep* n) { n->scales.dtype = DType::kBf16; }), "MALFORMED");
      EXPECT_EQ(reason([](NormStep* n) { n->scales.extent = {3, 3}; }), "MALFORMED");
      EXPECT_EQ(reason([](NormStep* n) { n->scales.extent[0] = 2; }), "MALFORMED");
      EXPECT_EQ(reason([](NormStep* n) { n->scales.ref = n->out.ref; }), "RACE");
      EXPECT_EQ(reason([](NormStep* n) { n->scales.ref = n->quantized.ref; }), "RACE");
      EXPECT_EQ(reason([](NormStep* n) { n->scales.ref.offset = 4; }), "BOUNDS");
    }
  }
}

TEST(Norms, ComeBehindEveryLane) {
  int several = 0;
  for (const Algorithm algorithm : {Algorithm::kTiledTwoShot, Algorithm::kUnfused}) {
    const Planned planned = PlanNorm(MatmulAllReduce(64, 32, 16), 2, algorithm);
    EXPECT_EQ(CheckPlan(planned.plan, planned.requests, {}), "");
    for (const RankProgram& program : planned.plan.programs) {
      const Step& norm = program.steps.back();
      EXPECT_TRUE(std::holds_alternative<NormStep>(norm.work));
      std::vector<uint32_t> last;
      for (int lane = 1; lane < program.lanes; ++lane) {
        for (size_t s = program.steps.size(); s-- > 0;) {
          if (program.steps[s].lane != lane) continue;
          last.push_back(static_cast<uint32_t>(s));
          break;
        }
      }
      EXPECT_EQ(norm.deps, last) << AlgorithmName(algorithm);
      several += last.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(several, 0);
}

}  // namespace
}  // namespace tandem::plan
