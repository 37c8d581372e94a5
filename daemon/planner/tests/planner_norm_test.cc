// The kernel of a norm behind a sum: the sum's own or another one, and what a plan and a family say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/members/member.h"
#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

OpRequest Normed(int64_t rows, int64_t columns, DType type = DType::kBf16, int64_t scales = 0) {
  const auto like = [&](Role role) { return Tensor(role, type, {rows, columns}); };
  OpRequest request = Request(
      Op::kAllReduce, {like(Role::kInput), like(Role::kOutput), Tensor(Role::kNormWeight, type, {columns}),
                       like(Role::kResidual), like(Role::kResidualOutput)});
  if (scales > 0) {
    request.operands.push_back(Tensor(Role::kQuantizedOutput, DType::kF8E4M3, {rows, columns}));
    request.operands.push_back(Tensor(Role::kScaleOutput, DType::kF32, {rows, scales}));
  }
  return request;
}

GroupContext Clients(int world) {
  GroupContext group = SwitchGroup(world);
  group.placement = PlanPlacement::kClient;
  group.client_kernels = ClientKernels::kFused;
  group.packet_kernels = group.dense_packets = true;
  return group;
}

// Blocks a row on each rank, which are alike.
int RowBlocksOf(const OperationPlan& plan) {
  int blocks = -1;
  for (const RankProgram& program : plan.programs) {
    const int own = std::get<NormStep>(program.steps.back().work).row_blocks;
    EXPECT_TRUE(program.rank == 0 || own == blocks) << own << " and " << blocks;
    blocks = own;
  }
  return blocks;
}

OperationPlan PlanBy(Algorithm algorithm, OpRequest request, const GroupContext& group) {
  request.algorithm = algorithm;
  return MustPlan(request, group);
}

TEST(NormKernel, ClustersShareTheRowsOfSmallSums) {
  const GroupContext group = Clients(2);
  const std::pair<int64_t, int> shared[] = {{1, 8}, {8, 8}, {16, 8}, {17, 4}, {32, 4}, {33, 1}, {64, 1}};
  for (const auto& [rows, blocks] : shared) {
    const OperationPlan plan = PlanBy(Algorithm::kLowLatency, Normed(rows, 8192), group);
    EXPECT_EQ(RowBlocksOf(plan), blocks) << rows;
    EXPECT_THAT(plan.norm, StartsWith("in the sum's kernel, ")) << rows;
  }
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(8, 2048), group)), 4) << "1 KiB a block";
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(8, 1024), group)), 1);
}

TEST(NormKernel, APromiseOfBitsSharesNoRow) {
  OpRequest request = Normed(8, 8192);
  request.determinism = Determinism::kBatch;
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, request, Clients(2))), 1);
}

TEST(NormKernel, ManyRowsAloneAreNormedByTheSumsOfSeveralRanks) {
  const OperationPlan few = PlanBy(Algorithm::kLowLatency, Normed(63, 1024), Clients(4));
  EXPECT_EQ(RowBlocksOf(few), 0);
  EXPECT_THAT(few.norm, HasSubstr("faster for fewer than 64 rows"));
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(64, 1024), Clients(4))), 1);
}

TEST(NormKernel, WhatTheSumsKernelCannotDoIsNormedApart) {
  const auto why = [](const OpRequest& request, Algorithm algorithm, int world) {
    const OperationPlan plan = PlanBy(algorithm, request, Clients(world));
    EXPECT_EQ(RowBlocksOf(plan), 0);
    EXPECT_THAT(plan.norm, StartsWith("a separate kernel: "));
    return plan.norm;
  };
  EXPECT_THAT(why(Normed(64, 8192), Algorithm::kTwoShot, 2), HasSubstr("dense packets"));
  EXPECT_THAT(why(Normed(512, 4096), Algorithm::kLowLatency, 4), HasSubstr("two shots"));
  EXPECT_THAT(why(Normed(8, 1028), Algorithm::kLowLatency, 2), HasSubstr("2056 bytes"));
  EXPECT_THAT(why(Normed(2, 16392), Algorithm::kLowLatency, 2), HasSubstr("above its bound of 32768"));
  EXPECT_THAT(why(Normed(4, 8200), Algorithm::kLowLatency, 8), HasSubstr("above its bound of 16384"));
  EXPECT_THAT(why(Normed(8, 1024, DType::kF32, 1), Algorithm::kLowLatency, 2), HasSubstr("f32"));
}

TEST(NormKernel, BlocksOfColumnsLieWithinAThreadBlock) {
  // 7168 columns are 896 words: 112 for each of eight blocks, which is a whole number of scales of 16 words.
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(4, 7168, DType::kBf16, 56), Clients(2))), 8);
  // 5120 columns: 80 words for each of eight blocks, 160 for each of four.
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(4, 5120, DType::kBf16, 40), Clients(2))), 8);
  // 2880 columns: 90 words for each of four blocks are no whole number of scales.
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(4, 2880, DType::kBf16, 23), Clients(2))), 1);
  EXPECT_EQ(RowBlocksOf(PlanBy(Algorithm::kLowLatency, Normed(4, 2880, DType::kBf16, 1), Clients(2))), 4);
}

TEST(NormKernel, AProductsSumIsNormedInItsKernelUnlessABiasComesBetween) {
  constexpr int64_t kRows = 16, kColumns = 4096;
  const auto product = [](bool bias) {
    const auto like = [](Role role) { return Tensor(role, DType::kBf16, {kRows, kColumns}); };
    OpRequest request =
        Request(Op::kMatmulAllReduce, {Tensor(Role::kA, DType::kBf16, {kRows, 1024}),
                                       Tensor(Role::kB, DType::kBf16, {1024, kColumns}), like(Role::kC),
                                       Tensor(Role::kNormWeight, DType::kBf16, {kColumns}),
                                       like(Role::kResidual), like(Role::kResidualOutput)});
    if (bias) request.operands.push_back(Tensor(Role::kBias, DType::kBf16, {kColumns}));
    request.on_unfused = OnUnfused::kAllow;
    return PlanBy(Algorithm::kLowLatency, request, Clients(2));
  };
  EXPECT_EQ(RowBlocksOf(product(false)), 8);
  const OperationPlan with_bias = product(true);
  EXPECT_EQ(RowBlocksOf(with_bias), 0);
  EXPECT_THAT(with_bias.norm, HasSubstr("no sum of these rows"));
}

TEST(NormKernel, EnginesAndTheHostNormApart) {
  const OperationPlan plan = MustPlan(Normed(8, 1024), SwitchGroup(2));
  EXPECT_EQ(RowBlocksOf(plan), 0);
  EXPECT_THAT(plan.norm, StartsWith("a separate kernel"));
  EXPECT_EQ(MustPlan(AllReduce(64), SwitchGroup(2)).norm, "");
}

TEST(NormKernel, AFamilySaysItForEachRange) {
  OpRequest request = Normed(256, 1024);
  request.max_rows = 256;
  const GroupContext group = Clients(4);
  const OperationPlan plan = MustPlan(request, group);
  const auto reason = [&](int64_t rows) {
    const Result<const RowRange*> range = plan.rows.Find(rows);
    EXPECT_TRUE(range.ok());
    return (*range)->reason;
  };
  EXPECT_THAT(reason(63), HasSubstr("norm: a separate kernel: faster for fewer than 64 rows"));
  EXPECT_THAT(reason(64), HasSubstr("norm: in the sum's kernel, 1 block a row"));
  for (const int64_t rows : {63, 64}) {
    const auto member = MakeMember(plan.rows, OnAllRanks(Normed(rows, 1024), 4), group, rows);
    ASSERT_TRUE(member.ok()) << member.status().ToString();
    EXPECT_EQ(RowBlocksOf(*member), rows == 64 ? 1 : 0);
  }
}

}  // namespace
}  // namespace tandem::plan
