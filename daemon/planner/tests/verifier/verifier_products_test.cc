// The order of sums in products: proven for every plan that keeps determinism = batch, and each planted mistake is
// found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/planner/problem/problem.h"
#include "daemon/planner/tests/planner_fixtures.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

constexpr int64_t kN = 64, kK = 128;

// All ranks together have `rows` rows.
OpRequest ProductOf(Op op, int world, int64_t rows, DType dtype) {
  OpRequest request = op == Op::kMatmulAllReduce       ? MatmulAllReduce(rows, kN, kK, dtype)
                      : op == Op::kMatmulReduceScatter ? MatmulScatter(world, rows, kN, kK, 0, dtype)
                                                       : GatherMatmul(world, rows / world, kN, kK, 0, dtype);
  request.determinism = Determinism::kBatch;
  request.on_unfused = OnUnfused::kAllow;
  return request;
}

GroupContext OnHost(int world) {
  GroupContext group = SwitchGroup(world);
  group.fused_kernels = true;
  return group;
}

SumOrder ProductOrderOf(const OpRequest& request, const GroupContext& group) {
  const std::vector<OpRequest> requests = OnAllRanks(request, group.topology.size());
  const Result<Problem> problem = MakeProblem(requests, group);
  EXPECT_TRUE(problem.ok()) << problem.status().ToString();
  SumOrder order;
  order.k = problem->k;
  order.sums = request.op != Op::kAllGatherMatmul;
  for (int rank = 0; rank < group.topology.size(); ++rank) {
    order.inputs.push_back(problem->Slot(rank, problem->slots.a));
    order.outputs.push_back(problem->Slot(rank, problem->slots.c[0]));
    order.has_output.push_back(true);
  }
  return order;
}

// All steps of a rank, collectives expanded, in place.
std::vector<Step*> StepsOf(RankProgram* program) {
  std::vector<Step*> steps;
  for (Step& step : program->steps) {
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      for (Step& part : collective->expansion) steps.push_back(&part);
    } else {
      steps.push_back(&step);
    }
  }
  return steps;
}

template <class Work>
std::vector<Work*> WorkOf(RankProgram* program) {
  std::vector<Work*> works;
  for (Step* step : StepsOf(program)) {
    if (auto* work = std::get_if<Work>(&step->work)) works.push_back(work);
  }
  return works;
}

TEST(ProductOrder, IsProvenForEveryPlanOfABatch) {
  int plans = 0;
  std::set<std::pair<Op, Algorithm>> proven;
  for (const int world : {2, 3, 4, 8}) {
    for (const bool cuda : {false, true}) {
      for (const PlanPlacement placement : {PlanPlacement::kEngine, PlanPlacement::kClient}) {
        GroupContext group = OnHost(world);
        group.placement = placement;
        group.packet_kernels = cuda;
        if (cuda) group.client_kernels = ClientKernels::kFused;
        for (const Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
          for (const DType dtype : {DType::kF32, DType::kBf16}) {
            for (const int64_t parts : {1, 3, 64, 257}) {
              OpRequest request = ProductOf(op, world, parts * world, dtype);
              for (const Algorithm algorithm : AlgorithmsOf(op)) {
                request.algorithm = algorithm;
                const Result<OperationPlan> plan = PlanOf(request, group);
                if (!plan.ok()) {
                  EXPECT_NE(plan.status().code(), Code::kInternal)
                      << OpName(op) << " by " << AlgorithmName(algorithm) << " of " << parts * world
                      << " rows on " << world << (cuda ? " GPUs, " : " ranks, ") << PlacementName(placement)
                      << ": " << plan.status().ToString();
                  continue;  // the choice's tests have the reasons
                }
                ++plans;
                proven.insert({op, algorithm});
                const Status order = VerifyProductOrder(plan->programs, ProductOrderOf(request, group));
                EXPECT_TRUE(order.ok()) << OpName(op) << " by " << AlgorithmName(algorithm) << " of "
                                        << parts * world << " rows on " << world << ": " << order.ToString();
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 400);
  for (const Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    for (const Algorithm algorithm : {Algorithm::kFused, Algorithm::kUnfused})
      EXPECT_TRUE(proven.contains({op, algorithm})) << OpName(op) << " by " << AlgorithmName(algorithm);
  }
  EXPECT_TRUE(proven.contains({Op::kMatmulReduceScatter, Algorithm::kRing}));
  EXPECT_TRUE(proven.contains({Op::kMatmulReduceScatter, Algorithm::kPipeline}));
  EXPECT_TRUE(proven.contains({Op::kMatmulAllReduce, Algorithm::kTiledTwoShot}));
}

TEST(ProductOrder, HoldsWithBiasInOtherTypesAlongColumnsAndInSymmetricOutputs) {
  const GroupContext group = OnHost(4);
  std::vector<OpRequest> requests;
  for (const Op op : {Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    OpRequest bias = ProductOf(op, 4, 64, DType::kBf16);
    bias.operands.push_back(Tensor(Role::kBias, DType::kBf16, {kN}));
    requests.push_back(bias);
    OpRequest wide = ProductOf(op, 4, 64, DType::kBf16);
    wide.wire = WireType::kF32;
    requests.push_back(wide);
    OpRequest symmetric = ProductOf(op, 4, 64, DType::kBf16);
    symmetric.operands[2].symmetric = true;
    requests.push_back(symmetric);
  }
  OpRequest columns = MatmulScatter(4, 64, kN, kK, 1, DType::kBf16);
  columns.determinism = Determinism::kBatch;
  columns.on_unfused = OnUnfused::kAllow;
  requests.push_back(columns);
  int plans = 0;
  for (OpRequest& request : requests) {
    for (const Algorithm algorithm : AlgorithmsOf(request.op)) {
      request.algorithm = algorithm;
      const Result<OperationPlan> plan = PlanOf(request, group);
      EXPECT_TRUE(plan.ok() || plan.status().code() != Code::kInternal) << plan.status().ToString();
      plans += plan.ok();
    }
  }
  EXPECT_GE(plans, 20);
}

// Bias, result scale and norm follow the sum in place where the output has the wire's type.
TEST(ProductOrder, HoldsWithAllThatFollowsTheSum) {
  int plans = 0, in_place = 0;
  for (const int world : {2, 4}) {
    for (const auto& [inputs, output] : {std::pair{DType::kF32, DType::kF32},
                                         {DType::kF16, DType::kF16},
                                         {DType::kBf16, DType::kBf16},
                                         {DType::kF16, DType::kF32},
                                         {DType::kBf16, DType::kF32}}) {
      for (const Op op : {Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
        for (const bool symmetric : {false, true}) {
          for (const bool norm : {false, true}) {
            if (norm && op != Op::kMatmulAllReduce) continue;
            OpRequest request = ProductOf(op, world, 64, inputs);
            request.operands[2].spec.dtype = output;
            request.operands[2].symmetric = symmetric;
            request.operands.push_back(Tensor(Role::kBias, output, {kN}));
            if (norm) {
              const std::vector<int64_t> shape = request.operands[2].spec.shape;
              request.operands.push_back(Tensor(Role::kNormWeight, output, {kN}));
              request.operands.push_back(Tensor(Role::kResidual, output, shape));
              request.operands.push_back(Tensor(Role::kResidualOutput, output, shape));
            }
            for (const Algorithm algorithm : AlgorithmsOf(op)) {
              request.algorithm = algorithm;
              const Result<OperationPlan> plan = PlanOf(request, OnHost(world));
              EXPECT_TRUE(plan.ok() || plan.status().code() != Code::kInternal)
                  << OpName(op) << " by " << AlgorithmName(algorithm) << " of " << DTypeName(inputs) << " to "
                  << DTypeName(output) << (symmetric ? ", symmetric" : "") << (norm ? ", with a norm" : "")
                  << ": " << plan.status().ToString();
              plans += plan.ok();
              in_place += plan.ok() && !Overlaps(algorithm) && op == Op::kMatmulAllReduce;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(plans, 100);
  EXPECT_GE(in_place, 24);
}

TEST(ProductOrder, HoldsOnOneRankWithWhatFollowsTheProduct) {
  const GroupContext group = OnHost(1);
  for (const Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    OpRequest request = ProductOf(op, 1, 64, DType::kBf16);
    EXPECT_TRUE(PlanOf(request, group).ok()) << PlanOf(request, group).status().ToString();
    request.operands.push_back(Tensor(Role::kBias, DType::kBf16, {kN}));
    EXPECT_TRUE(PlanOf(request, group).ok()) << PlanOf(request, group).status().ToString();
    if (op == Op::kAllGatherMatmul) continue;
    request.wire = WireType::kF32;
    EXPECT_TRUE(PlanOf(request, group).ok()) << PlanOf(request, group).status().ToString();
  }
}

void ExpectFound(const OpRequest& request, const GroupContext& group, const std::string& text,
                 const std::function<void(OperationPlan*)>& plant) {
  OperationPlan plan = MustPlan(request, group);
  const SumOrder order = ProductOrderOf(request, group);
  ASSERT_TRUE(VerifyProductOrder(plan.programs, order).ok());
  plant(&plan);
  const Status found = VerifyProductOrder(plan.programs, order);
  EXPECT_EQ(found.code(), Code::kInternal);
  EXPECT_EQ(found.detail().reason, "SUM_ORDER") << found.ToString();
  EXPECT_THAT(found.message(), HasSubstr(text));
}

// Each form that can run a product's sum.
std::vector<OpRequest> SummedProducts() {
  std::vector<OpRequest> requests;
  for (const Op op : {Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    for (const Algorithm algorithm :
         {Algorithm::kFused, Algorithm::kUnfused,
          op == Op::kMatmulAllReduce ? Algorithm::kTiledTwoShot : Algorithm::kRing}) {
      OpRequest request = ProductOf(op, 4, 256, DType::kBf16);
      request.algorithm = algorithm;
      requests.push_back(request);
    }
  }
  return requests;
}

TEST(ProductOrder, FindsAProductWhoseKIsCut) {
  std::vector<OpRequest> requests = SummedProducts();
  requests.push_back(ProductOf(Op::kAllGatherMatmul, 4, 256, DType::kBf16));
  for (const OpRequest& request : requests) {
    ExpectFound(request, OnHost(4), "a product of a part of K", [](OperationPlan* plan) {
      // The last product as two: the second one adds the rest of K.
      MatmulStep& product = *WorkOf<MatmulStep>(&plan->programs[2]).back();
      product.a = Slice(product.a, static_cast<int>(product.a.extent.size()) - 1, 0, kK / 2);
      product.b = Slice(product.b, 0, 0, kK / 2);
    });
    ExpectFound(request, OnHost(4), "a product of a part of K", [](OperationPlan* plan) {
      WorkOf<MatmulStep>(&plan->programs[1]).front()->accumulate = true;
    });
    ExpectFound(request, OnHost(4), "a product whose kernel may cut K", [](OperationPlan* plan) {
      WorkOf<MatmulStep>(&plan->programs[3]).back()->fixed_order = false;
    });
  }
}

TEST(ProductOrder, FindsAnotherOrderOfRanks) {
  for (const OpRequest& request : SummedProducts()) {
    ExpectFound(request, OnHost(4), "in the place of rank", [](OperationPlan* plan) {
      std::vector<ReduceStep*> sums = WorkOf<ReduceStep>(&plan->programs[1]);
      const auto sum =
          std::find_if(sums.begin(), sums.end(), [](ReduceStep* s) { return s->sources.size() == 4; });
      ASSERT_NE(sum, sums.end());
      std::swap((*sum)->sources[2], (*sum)->sources[3]);
    });
    ExpectFound(request, OnHost(4), "parts, not one of each rank", [](OperationPlan* plan) {
      std::vector<ReduceStep*> sums = WorkOf<ReduceStep>(&plan->programs[1]);
      sums.front()->sources.pop_back();
    });
    ExpectFound(request, OnHost(4), "has another factor",
                [](OperationPlan* plan) { WorkOf<ReduceStep>(&plan->programs[2]).back()->scale = 0.25f; });
  }
}

TEST(ProductOrder, FindsOtherRowsOfARank) {
  for (const OpRequest& request : SummedProducts()) {
    ExpectFound(request, OnHost(4), "adds other elements of rank", [](OperationPlan* plan) {
      for (MatmulStep* product : WorkOf<MatmulStep>(&plan->programs[2])) {
        product->a.ref.offset += 2 * kK;  // one row
      }
    });
  }
}

TEST(ProductOrder, FindsAnOutputWithoutASum) {
  const auto leave_out = [](OperationPlan* plan) {
    for (Step* step : StepsOf(&plan->programs[1])) {
      if (std::holds_alternative<ReduceStep>(step->work)) step->work = NopStep{};
    }
  };
  for (const auto& [op, text] : {std::pair{Op::kMatmulReduceScatter, "elements are written of an output of"},
                                 std::pair{Op::kMatmulAllReduce, "an output without a sum"}}) {
    OpRequest request = ProductOf(op, 4, 256, DType::kBf16);
    request.algorithm = Algorithm::kFused;
    ExpectFound(request, OnHost(4), text, leave_out);
  }
}

// A bias behind a sum in fp32 is added in the output itself, which is no second write.
TEST(ProductOrder, FindsASecondWriteBesideABiasInPlace) {
  OpRequest request = ProductOf(Op::kMatmulAllReduce, 4, 256, DType::kF32);
  request.operands.push_back(Tensor(Role::kBias, DType::kF32, {kN}));
  request.algorithm = Algorithm::kUnfused;
  const auto add_behind = [](OperationPlan* plan, const auto& work) {
    Step step = plan->programs[1].steps.back();
    ASSERT_TRUE(std::holds_alternative<ReduceStep>(step.work));
    step.work = work;
    plan->programs[1].steps.push_back(step);
  };
  ExpectFound(request, OnHost(4), "an output without a sum", [&](OperationPlan* plan) {
    add_behind(plan, *WorkOf<ReduceStep>(&plan->programs[1]).back());  // the bias twice
  });
  ExpectFound(request, OnHost(4), "adds what has been rounded before", [&](OperationPlan* plan) {
    ReduceStep again = *WorkOf<ReduceStep>(&plan->programs[1]).front();
    again.dst = again.sources[0] = WorkOf<ReduceStep>(&plan->programs[1]).back()->dst;
    add_behind(plan, again);  // the sum again, over the bias
  });
  ExpectFound(request, OnHost(4), "an output without a sum", [](OperationPlan* plan) {
    std::vector<Step>& steps = plan->programs[1].steps;
    const auto product = std::find_if(steps.begin(), steps.end(), [](const Step& step) {
      return std::holds_alternative<MatmulStep>(step.work);
    });
    ASSERT_NE(product, steps.end());
    const Step again = *product;
    steps.insert(steps.end() - 1, again);  // the bias is added to one rank's product
  });
}

// As with parts of A that come back before they have been sent.
TEST(ProductOrder, FindsAPartThatAPeerHasWrittenOver) {
  OpRequest request = ProductOf(Op::kMatmulAllReduce, 4, 1028, DType::kBf16);
  request.algorithm = Algorithm::kFused;
  ExpectFound(request, OnHost(4), "reads what is written twice", [](OperationPlan* plan) {
    // Rank 1 waits for nobody, so that its results may come before rank 0 has sent its parts.
    for (Step* step : StepsOf(&plan->programs[1])) {
      if (std::holds_alternative<WaitStep>(step->work)) step->work = NopStep{};
    }
  });
}

TEST(ProductOrder, FindsASumThatIsRoundedTwice) {
  OpRequest request = ProductOf(Op::kMatmulAllReduce, 4, 256, DType::kBf16);
  request.operands.push_back(Tensor(Role::kBias, DType::kBf16, {kN}));
  request.algorithm = Algorithm::kUnfused;
  const Status refused = PlanOf(request, OnHost(4)).status();
  EXPECT_THAT(refused.message(), HasSubstr("it rounds the sum before bias"));
  request.determinism = Determinism::kOff;
  OperationPlan plan = MustPlan(request, OnHost(4));
  for (RankProgram& program : plan.programs) {
    for (MatmulStep* product : WorkOf<MatmulStep>(&program)) product->fixed_order = true;
  }
  const Status found = VerifyProductOrder(plan.programs, ProductOrderOf(request, OnHost(4)));
  EXPECT_THAT(found.message(), HasSubstr("rounds what has been rounded before"));
}

}  // namespace
}  // namespace tandem::plan
