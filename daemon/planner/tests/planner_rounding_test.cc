// The value that a norm is computed from: kept by each algorithm, alike on all ranks, refused where unknown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/members/member.h"
#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

OpRequest Normed(Rounding rounding, bool residual = true, Op op = Op::kAllReduce) {
  constexpr int64_t kRows = 16, kColumns = 64;
  const auto like = [&](Role role) { return Tensor(role, DType::kBf16, {kRows, kColumns}); };
  OpRequest request = op == Op::kAllReduce
                          ? Request(op, {like(Role::kInput), like(Role::kOutput)})
                          : Request(op, {Tensor(Role::kA, DType::kBf16, {kRows, 32}),
                                         Tensor(Role::kB, DType::kBf16, {32, kColumns}), like(Role::kC)});
  request.operands.push_back(Tensor(Role::kNormWeight, DType::kBf16, {kColumns}));
  if (residual) {
    request.operands.push_back(like(Role::kResidual));
    request.operands.push_back(like(Role::kResidualOutput));
  }
  request.rounding = rounding;
  return request;
}

const NormStep& NormOf(const RankProgram& program) { return std::get<NormStep>(program.steps.back().work); }

TEST(RoundingChoice, EveryAlgorithmKeepsIt) {
  const std::pair<Op, std::vector<Algorithm>> ops[] = {
      {Op::kAllReduce, {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kCopyEngine, Algorithm::kNccl}},
      {Op::kMatmulAllReduce, {Algorithm::kTiledTwoShot, Algorithm::kUnfused, Algorithm::kNccl}}};
  for (const auto& [op, algorithms] : ops) {
    for (const Algorithm algorithm : algorithms) {
      for (const Rounding rounding : {Rounding::kOnce, Rounding::kModel}) {
        OpRequest request = Normed(rounding, true, op);
        request.algorithm = algorithm;
        request.on_unfused = OnUnfused::kAllow;
        const OperationPlan plan = MustPlan(request, SwitchGroup(4));
        EXPECT_EQ(plan.algorithm, algorithm);
        EXPECT_EQ(plan.rounding, rounding == Rounding::kOnce ? "once" : "model");
        for (const RankProgram& program : plan.programs)
          EXPECT_EQ(NormOf(program).unrounded, rounding == Rounding::kOnce);
      }
    }
  }
}

TEST(RoundingChoice, SaysNothingWhereNothingIsAdded) {
  EXPECT_EQ(MustPlan(AllReduce(64), SwitchGroup(2)).rounding, "");
  const OperationPlan plan = MustPlan(Normed(Rounding::kOnce, false), SwitchGroup(2));
  EXPECT_EQ(plan.rounding, "");
  for (const RankProgram& program : plan.programs) EXPECT_FALSE(NormOf(program).unrounded);
}

TEST(RoundingChoice, HoldsBesideAPromiseOfBits) {
  OpRequest request = Normed(Rounding::kOnce);
  request.determinism = Determinism::kBatch;
  const OperationPlan plan = MustPlan(request, SwitchGroup(2));
  for (const RankProgram& program : plan.programs) {
    EXPECT_TRUE(NormOf(program).unrounded);
    EXPECT_TRUE(NormOf(program).fixed_order);
  }
}

TEST(RoundingChoice, HoldsInEachMemberOfAFamily) {
  for (const Rounding rounding : {Rounding::kOnce, Rounding::kModel}) {
    OpRequest request = Normed(rounding);
    request.max_rows = 16;
    const GroupContext group = SwitchGroup(2);
    const OperationPlan plan = MustPlan(request, group);
    ASSERT_EQ(plan.rows.max_rows, 16);
    const auto member = MakeMember(plan.rows, OnAllRanks(Normed(rounding), 2), group, 16);
    ASSERT_TRUE(member.ok()) << member.status().ToString();
    for (const RankProgram& program : member->programs)
      EXPECT_EQ(NormOf(program).unrounded, rounding == Rounding::kOnce);
  }
}

TEST(RoundingChoice, MustAgree) {
  std::vector<OpRequest> requests = OnAllRanks(Normed(Rounding::kOnce), 3);
  requests[2].rounding = Rounding::kModel;
  const Status differs = CompareRequests(requests);
  EXPECT_EQ(differs.detail().reason, "FIELD_MISMATCH");
  EXPECT_EQ(differs.detail().field, "rounding");
  EXPECT_THAT(differs.message(), HasSubstr("once"));
  EXPECT_THAT(differs.message(), HasSubstr("model"));
  ExpectRefused(
      Normed(Rounding::kOnce), [](OpRequest* r) { r->rounding = static_cast<Rounding>(9); }, "rounding",
      "must be once or model");
}

}  // namespace
}  // namespace tandem::plan
