// Operations in place: which requests are, and what their programs leave out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/tests/planner_fixtures.h"
#include "program/kernel_phases.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

using ::testing::HasSubstr;

TEST(Aliases, AreChecked) {
  OpRequest base = AllReduce(8);
  base.operands[1].alias_of = 0;
  const std::string field = "operands[1].alias_of";
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].alias_of = 2; }, field);
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].alias_of = 1; }, field);
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].alias_of = -2; }, field);
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].spec.shape = {7}; }, field, "equal shapes");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].spec.strides = {2}; }, field, "equal strides");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].symmetric = true; }, field, "symmetric");
  ExpectRefused(
      AllReduce(8), [](OpRequest* r) { r->operands[0].alias_of = 1; }, "operands[0].alias_of");
  ExpectRefused(
      GatherMatmul(4, 4, 4, 4), [](OpRequest* r) { r->operands[2].alias_of = 0; }, "operands[2].alias_of",
      "only the output of");
}

TEST(Restartable, IsRefusedInPlace) {
  OpRequest request = AllReduce(8);
  request.restartable = true;
  EXPECT_TRUE(PlanOf(request, SwitchGroup(4)).ok());
  request.operands[1].alias_of = 0;
  const Status status = PlanOf(request, SwitchGroup(4)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.detail().reason, "NOT_RESTARTABLE");
  EXPECT_EQ(status.detail().field, "operands[1].alias_of");
  EXPECT_THAT(status.message(), HasSubstr("alias_of -1"));
}

TEST(Aliases, OfAPartAreSlices) {
  OpRequest gather = Request(Op::kAllGather, {Tensor(Role::kInput, DType::kF32, {3, 2}),
                                              Tensor(Role::kOutput, DType::kF32, {3, 8})});
  gather.dim = 1;
  gather.operands[1].alias_of = 0;
  OpRequest scatter = Request(Op::kReduceScatter, {gather.operands[1], gather.operands[0]});
  scatter.operands[0].role = Role::kInput;
  scatter.operands[0].alias_of = -1;
  scatter.operands[1].role = Role::kOutput;
  scatter.operands[1].alias_of = 0;
  scatter.dim = -1;
  for (const OpRequest& base : {gather, scatter}) {
    const int part = base.op == Op::kAllGather ? 0 : 1, whole = 1 - part;
    const auto slot = [](int index, const char* member) {
      return "operands[" + std::to_string(index) + "]." + member;
    };
    // The larger one's strides, given or left out.
    for (const std::vector<int64_t>& strides : {std::vector<int64_t>{}, {8, 1}}) {
      OpRequest request = base;
      request.operands[part].spec.strides = strides;
      EXPECT_TRUE(PlanOf(request, SwitchGroup(4)).ok())
          << PlanOf(request, SwitchGroup(4)).status().ToString();
    }
    ExpectRefused(
        base,
        [part](OpRequest* r) {
          r->operands[part].spec.strides = {2, 1};
        },
        slot(part, "strides"), "must be those of operand " + std::to_string(whole));
    ExpectRefused(
        base,
        [part, whole](OpRequest* r) {
          r->operands[part].spec.strides = {8, 1};
          r->operands[whole].spec.strides = {9, 1};
        },
        slot(part, "strides"), "they are [8, 1], those of the whole [9, 1]");
    ExpectRefused(
        base,
        [whole](OpRequest* r) {
          r->operands[whole].spec.strides = {4, 1};
        },
        slot(whole, "strides"), "overlap");
    ExpectRefused(
        base, [](OpRequest* r) { r->operands[1].spec.dtype = DType::kI32; }, "operands[1].alias_of",
        "equal dtypes");
    ExpectRefused(
        base, [](OpRequest* r) { r->operands[1].spec.shape[0] = 4; }, "operands[1].shape", "must be [3, ");
    ExpectRefused(
        base, [](OpRequest* r) { r->operands[0].symmetric = true; }, "operands[1].alias_of",
        "both symmetric or both not");
    // Ranks that say the same in different words agree.
    std::vector<OpRequest> requests = OnAllRanks(base, 4);
    requests[2].operands[part].spec.strides = {8, 1};
    EXPECT_TRUE(CompareRequests(requests).ok()) << CompareRequests(requests).ToString();
    requests[2].operands[part].spec.strides = {2, 1};
    EXPECT_EQ(CompareRequests(requests).detail().field, slot(part, "strides"));
  }
}

// Shards of [2, 3], gathered or scattered along `dim`, on four ranks.
OpRequest InPlace(Op op, int dim, Algorithm algorithm, bool symmetric) {
  std::vector<int64_t> whole = {2, 3};
  whole[static_cast<size_t>(dim)] *= 4;
  const bool gathers = op == Op::kAllGather;
  OpRequest request =
      Request(op, {Tensor(Role::kInput, DType::kF32, gathers ? std::vector<int64_t>{2, 3} : whole),
                   Tensor(Role::kOutput, DType::kF32, gathers ? whole : std::vector<int64_t>{2, 3})});
  request.dim = dim;
  request.algorithm = algorithm;
  request.operands[1].alias_of = 0;
  for (Operand& operand : request.operands) operand.symmetric = symmetric;
  return request;
}

// Bytes from where the slots are bound to the part of `rank`.
uint64_t PartOffset(int dim, int rank) {
  return static_cast<uint64_t>(dim == 0 ? rank * 2 * 3 * 4 : rank * 3 * 4);
}

TEST(InPlace, AGatherSendsItsPartAndCopiesNothingToItself) {
  for (Algorithm algorithm : {Algorithm::kCopyEngine, Algorithm::kSm}) {
    for (int dim : {0, 1}) {
      for (bool symmetric : {false, true}) {
        SCOPED_TRACE(std::string(AlgorithmName(algorithm)) + " dim " + std::to_string(dim) +
                     (symmetric ? " symmetric" : ""));
        auto plan = PlanOf(InPlace(Op::kAllGather, dim, algorithm, symmetric), SwitchGroup(4));
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        EXPECT_EQ(plan->workspace_bytes == 0, symmetric);  // peers write the output itself
        for (const RankProgram& program : plan->programs) {
          int pushes = 0;
          for (const Step& step : ExpandedSteps(program)) {
            const auto* copy = std::get_if<CopyStep>(&step.work);
            if (copy == nullptr) continue;
            if (copy->dst.ref.rank == program.rank) {
              EXPECT_FALSE(symmetric) << "a copy within rank " << program.rank;
              EXPECT_NE(copy->dst.ref.offset, PartOffset(dim, program.rank));
              continue;
            }
            ++pushes;
            EXPECT_EQ(copy->src.ref.slot, 0);
            EXPECT_EQ(copy->src.ref.offset, PartOffset(dim, program.rank));
            if (!symmetric) continue;
            EXPECT_EQ(copy->dst, OnRank(copy->src, copy->dst.ref.rank));
          }
          EXPECT_EQ(pushes, 3);
        }
      }
    }
  }
}

TEST(InPlace, AReduceScatterSumsIntoItsPart) {
  for (Algorithm algorithm : {Algorithm::kCopyEngine, Algorithm::kSm}) {
    for (int dim : {0, 1}) {
      auto plan = PlanOf(InPlace(Op::kReduceScatter, dim, algorithm, false), SwitchGroup(4));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      for (const RankProgram& program : plan->programs) {
        int sums = 0;
        for (const Step& step : ExpandedSteps(program)) {
          if (const auto* copy = std::get_if<CopyStep>(&step.work)) {
            EXPECT_NE(copy->dst.ref.rank, program.rank);
          }
          const auto* reduce = std::get_if<ReduceStep>(&step.work);
          if (reduce == nullptr) continue;
          ++sums;
          EXPECT_EQ(reduce->dst.ref.slot, 0);
          EXPECT_EQ(reduce->dst.ref.offset, PartOffset(dim, program.rank));
          EXPECT_EQ(reduce->dst, reduce->sources[static_cast<size_t>(program.rank)]);
        }
        EXPECT_EQ(sums, 1);
      }
    }
  }
}

TEST(InPlace, PacketsCarryPartsOfOuterDimensions) {
  GroupContext group = SwitchGroup(4);
  group.packet_kernels = true;
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    auto plan = PlanOf(InPlace(op, 0, Algorithm::kLowLatency, false), group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    for (const RankProgram& program : plan->programs) {
      const auto& step = std::get<CollectiveStep>(program.steps.at(0).work);
      EXPECT_GT(step.blocks, 0);
      const auto packets = PlanPackets(step, 4);
      ASSERT_TRUE(packets.has_value());
      const auto rank = static_cast<size_t>(program.rank);
      EXPECT_EQ(packets->source[rank].ref.offset, PartOffset(0, program.rank));
      EXPECT_EQ(packets->destination[rank], packets->source[rank]);
    }
    EXPECT_THAT(PlanOf(InPlace(op, 1, Algorithm::kLowLatency, false), group).status().message(),
                HasSubstr("its pieces must be contiguous"));
  }
}

TEST(InPlace, NcclHasItAsItsOwn) {
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    for (int dim : {0, 1}) {
      auto plan = PlanOf(InPlace(op, dim, Algorithm::kNccl, false), SwitchGroup(4));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      EXPECT_THAT(plan->summary,
                  HasSubstr(op == Op::kAllGather ? "f32[2, 3] -> " : " -> f32[2, 3] in place"));
      EXPECT_THAT(plan->summary, HasSubstr(" in place along dim "));
      // Parts along an inner dimension do not lie behind one another: they go through workspace.
      EXPECT_EQ(plan->workspace_bytes == 0, dim == 0);
      for (const RankProgram& program : plan->programs) {
        EXPECT_EQ(program.steps.size(), dim == 0 ? 1u : 3u);
        if (dim != 0) continue;
        const auto& nccl = std::get<NcclStep>(program.steps[0].work);
        const View& part = op == Op::kAllGather ? nccl.in : nccl.out;
        const View& whole = op == Op::kAllGather ? nccl.out : nccl.in;
        EXPECT_EQ(part.ref.offset, whole.ref.offset + PartOffset(0, program.rank));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::plan
