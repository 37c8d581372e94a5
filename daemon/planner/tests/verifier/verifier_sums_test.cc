// The order of sums over ranks: proven for every plan that keeps determinism = batch, and each planted mistake is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/planner/tests/planner_fixtures.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

struct Summed {
  OperationPlan plan;
  SumOrder order;
};

// A contiguous operand of slot `slot`.
View OperandOf(const OpRequest& request, int rank, int slot) {
  const Operand& operand = request.operands[static_cast<size_t>(slot)];
  View view;
  view.ref = {Space::kOperand, static_cast<uint8_t>(rank),
              static_cast<uint16_t>(operand.alias_of >= 0 ? operand.alias_of : slot), 0};
  view.dtype = operand.spec.dtype;
  view.extent = operand.spec.shape;
  view.stride = ContiguousStrides(operand.spec.shape);
  return view;
}

SumOrder OrderOf(const OpRequest& request, int world) {
  SumOrder order;
  for (int rank = 0; rank < world; ++rank) {
    order.inputs.push_back(OperandOf(request, rank, 0));
    order.outputs.push_back(OperandOf(request, rank, 1));
    order.has_output.push_back(request.op != Op::kReduce || rank == request.root);
  }
  return order;
}

// Planned without the promise, so that the verifier is asked here and nowhere else.
Summed PlanSums(OpRequest request, Algorithm algorithm, const GroupContext& group) {
  request.algorithm = algorithm;
  return {MustPlan(request, group), OrderOf(request, group.topology.size())};
}

OpRequest Sum(Op op, int64_t rows, int64_t columns, int64_t parts = 1, DType dtype = DType::kBf16) {
  return Request(op, {Tensor(Role::kInput, dtype, {rows, columns}),
                      Tensor(Role::kOutput, dtype, {rows / parts, columns})});
}

std::vector<ReduceStep*> SumsOf(OperationPlan* plan) {
  std::vector<ReduceStep*> sums;
  for (RankProgram& program : plan->programs) {
    for (Step& step : program.steps) {
      if (auto* sum = std::get_if<ReduceStep>(&step.work)) sums.push_back(sum);
      if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        for (Step& part : collective->expansion) {
          if (auto* sum = std::get_if<ReduceStep>(&part.work)) sums.push_back(sum);
        }
      }
    }
  }
  return sums;
}

// The list of steps that holds rank `rank`'s first sum, and the sum's index.
std::pair<std::vector<Step>*, size_t> FirstSum(OperationPlan* plan, size_t rank) {
  std::vector<std::vector<Step>*> lists = {&plan->programs[rank].steps};
  for (Step& step : plan->programs[rank].steps) {
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) lists.push_back(&collective->expansion);
  }
  for (std::vector<Step>* list : lists) {
    for (size_t i = 0; i < list->size(); ++i) {
      if (std::holds_alternative<ReduceStep>((*list)[i].work)) return {list, i};
    }
  }
  return {nullptr, 0};
}

void ExpectFound(const Summed& summed, const std::string& text) {
  const Status found = VerifySumOrder(summed.plan.programs, summed.order);
  EXPECT_EQ(found.code(), Code::kInternal);
  EXPECT_EQ(found.detail().reason, "SUM_ORDER") << found.ToString();
  EXPECT_THAT(found.message(), HasSubstr(text));
}

TEST(SumOrder, IsThatOfRanksInEveryPlanOfABatch) {
  int plans = 0;
  for (const int world : {2, 3, 4, 8}) {
    for (const PlanPlacement placement : {PlanPlacement::kEngine, PlanPlacement::kClient}) {
      GroupContext group = HopperGroup(world);
      group.placement = placement;
      group.packet_kernels = true;
      group.client_kernels = ClientKernels::kFused;
      for (const Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kReduce}) {
        for (const Algorithm algorithm : AlgorithmsOf(op)) {
          for (const int64_t rows : {1, 3, 64, 257}) {
            const int64_t parts = op == Op::kReduceScatter ? world : 1;
            OpRequest request = Sum(op, rows * parts, 136, parts);
            request.determinism = Determinism::kBatch;
            request.algorithm = algorithm;
            request.root = world - 1;
            const Result<OperationPlan> plan = PlanOf(request, group);
            if (!plan.ok()) continue;  // the choice's tests have the reasons
            ++plans;
            EXPECT_EQ(plan->determinism, Determinism::kBatch);
            const Status proven = VerifySumOrder(plan->programs, OrderOf(request, world));
            EXPECT_TRUE(proven.ok()) << OpName(op) << " by " << AlgorithmName(algorithm) << " of " << rows
                                     << " rows on " << world << ": " << proven.ToString();
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 200);
}

TEST(SumOrder, HoldsInPlaceAlongInnerDimensionsAndInSymmetricOutputs) {
  const GroupContext group = SwitchGroup(4);
  OpRequest in_place = Sum(Op::kAllReduce, 33, 72);
  in_place.operands[1].alias_of = 0;
  OpRequest symmetric = Sum(Op::kAllReduce, 33, 72);
  for (Operand& operand : symmetric.operands) operand.symmetric = true;
  for (const OpRequest& request : {in_place, symmetric}) {
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kCopyEngine}) {
      const Summed summed = PlanSums(request, algorithm, group);
      const Status proven = VerifySumOrder(summed.plan.programs, summed.order);
      EXPECT_TRUE(proven.ok()) << proven.ToString();
    }
  }
  OpRequest inner = Request(Op::kReduceScatter, {Tensor(Role::kInput, DType::kF32, {5, 16}),
                                                 Tensor(Role::kOutput, DType::kF32, {5, 4})});
  inner.dim = 1;
  inner.determinism = Determinism::kBatch;
  for (const Algorithm algorithm : {Algorithm::kSm, Algorithm::kCopyEngine}) {
    inner.algorithm = algorithm;
    EXPECT_TRUE(PlanOf(inner, group).ok()) << PlanOf(inner, group).status().ToString();
  }
}

TEST(SumOrder, FindsASwappedPairInOneChunk) {
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kCopyEngine}) {
    Summed original = PlanSums(Sum(Op::kAllReduce, 64, 64), algorithm, SwitchGroup(4));
    const size_t sums = SumsOf(&original.plan).size();
    EXPECT_EQ(sums, 4u);
    for (size_t i = 0; i < sums; ++i) {
      Summed summed = original;
      std::vector<View>& sources = SumsOf(&summed.plan)[i]->sources;
      std::swap(sources[2], sources[3]);
      ExpectFound(summed, "adds the part of rank 3 in the place of rank 2");
    }
  }
}

// As a ring has it, whose chunk starts at its owner's neighbour.
TEST(SumOrder, FindsAnOrderThatDependsOnTheOwner) {
  Summed summed = PlanSums(Sum(Op::kAllReduce, 64, 64), Algorithm::kTwoShot, SwitchGroup(4));
  const std::vector<ReduceStep*> sums = SumsOf(&summed.plan);
  for (size_t owner = 1; owner < sums.size(); ++owner) {
    std::vector<View>& sources = sums[owner]->sources;
    std::rotate(sources.begin(), sources.begin() + static_cast<ptrdiff_t>(owner), sources.end());
  }
  ExpectFound(summed, "rank 1, ");
}

TEST(SumOrder, FindsASecondRounding) {
  Summed summed = PlanSums(Sum(Op::kAllReduce, 64, 64), Algorithm::kTwoShot, SwitchGroup(4));
  // Rank 2's first two parts are added apart, into the place of the second.
  const auto [steps, at] = FirstSum(&summed.plan, 2);
  ASSERT_NE(steps, nullptr);
  auto& whole = std::get<ReduceStep>((*steps)[at].work);
  Step apart = (*steps)[at];
  auto& first = std::get<ReduceStep>(apart.work);
  first.sources.resize(2);
  first.dst = whole.sources[1];
  first.dst.ref.offset = summed.plan.workspace_bytes;  // where nobody else writes
  whole.sources.erase(whole.sources.begin());
  whole.sources[0] = first.dst;
  steps->insert(steps->begin() + static_cast<ptrdiff_t>(at), apart);
  ExpectFound(summed, "adds 3 parts, not one of each rank");

  Summed mesh = PlanSums(Sum(Op::kAllReduce, 64, 64), Algorithm::kHybridCubeMesh, MeshGroup());
  ExpectFound(mesh, "adds 2 parts, not one of each rank");

  // As many parts as ranks, one of them a sum.
  Summed pair = PlanSums(Sum(Op::kAllReduce, 64, 64), Algorithm::kOneShot, SwitchGroup(2));
  const auto [of_pair, second] = FirstSum(&pair.plan, 1);
  auto& both = std::get<ReduceStep>((*of_pair)[second].work);
  Step before = (*of_pair)[second];
  std::get<ReduceStep>(before.work).dst = both.sources[0];
  std::get<ReduceStep>(before.work).dst.ref.offset = pair.plan.workspace_bytes;
  both.sources[0] = std::get<ReduceStep>(before.work).dst;
  of_pair->insert(of_pair->begin() + static_cast<ptrdiff_t>(second), before);
  ExpectFound(pair, "adds what has been rounded before");
}

TEST(SumOrder, FindsOtherElementsAnotherFactorAndAnOutputWithoutASum) {
  const OpRequest request = Sum(Op::kReduceScatter, 64, 64, 4);
  Summed elements = PlanSums(request, Algorithm::kSm, SwitchGroup(4));
  SumsOf(&elements.plan)[2]->sources[2].ref.offset += 128;
  ExpectFound(elements, "adds other elements of rank 2");

  Summed factor = PlanSums(request, Algorithm::kSm, SwitchGroup(4));
  SumsOf(&factor.plan)[3]->scale = 0.25f;
  ExpectFound(factor, "has another factor");

  Summed left_out = PlanSums(request, Algorithm::kSm, SwitchGroup(4));
  const auto [steps, at] = FirstSum(&left_out.plan, 1);
  steps->erase(steps->begin() + static_cast<ptrdiff_t>(at));
  ExpectFound(left_out, "rank 1: 0 elements are written");

  Summed copied = PlanSums(request, Algorithm::kSm, SwitchGroup(4));
  const auto [of_rank, place] = FirstSum(&copied.plan, 1);
  const ReduceStep sum = std::get<ReduceStep>((*of_rank)[place].work);
  CopyStep copy;
  copy.src = sum.sources[0];
  copy.dst = sum.dst;
  (*of_rank)[place].work = copy;
  ExpectFound(copied, "an output without a sum");

  ExpectFound(PlanSums(Sum(Op::kAllReduce, 64, 64), Algorithm::kNccl, SwitchGroup(4)), "nobody knows");
}

}  // namespace
}  // namespace tandem::plan
