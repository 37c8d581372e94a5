// Programs of every algorithm: they run to their end in program order, close, stay within their buffers, for
// any world size, shape and count.
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/planner/tests/planner_fixtures.h"
#include "program/text.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

// Plans `request` by each algorithm that can run, and simulates the programs. Returns how many ran.
int RunAll(OpRequest request, const GroupContext& group) {
  int ran = 0;
  const int world = group.topology.size();
  for (Algorithm algorithm : AlgorithmsOf(request.op)) {
    request.algorithm = algorithm;
    const auto requests = OnAllRanks(request, world);
    auto plan = MakePlan(requests, group);
    if (!plan.ok()) {
      EXPECT_EQ(plan.status().code(), Code::kFailedPrecondition) << plan.status().ToString();
      continue;
    }
    ++ran;
    EXPECT_EQ(Simulate(*plan, requests), "") << plan->summary << " by " << AlgorithmName(algorithm) << "\n"
                                             << ListProgram(plan->programs[0]);
    EXPECT_EQ(plan->programs.size(), static_cast<size_t>(world));
    for (const RankProgram& program : plan->programs) {
      EXPECT_EQ(program.workspace_bytes, plan->workspace_bytes);
      for (size_t i = 0; i < program.steps.size(); ++i) {
        EXPECT_LT(program.steps[i].lane, program.lanes);
        for (uint32_t dep : program.steps[i].deps) EXPECT_LT(dep, i);
      }
    }
  }
  return ran;
}

OpRequest Symmetric(OpRequest request) {
  for (Operand& operand : request.operands) {
    operand.symmetric =
        operand.role == Role::kOutput || operand.role == Role::kC || operand.role == Role::kGatheredA;
  }
  return request;
}

// Floats are summed in fp32 and rounded, integers in their own type and never rounded.
TEST(Numbers, OfASumNameTheTypeThatItIsKeptIn) {
  const auto sums_of = [](DType dtype) {
    return std::vector<OpRequest>{
        AllReduce(1 << 16, dtype),
        Request(Op::kReduceScatter,
                {Tensor(Role::kInput, dtype, {8, 64}), Tensor(Role::kOutput, dtype, {1, 64})}),
        Request(Op::kReduce, {Tensor(Role::kInput, dtype, {64}), Tensor(Role::kOutput, dtype, {64})})};
  };
  int planned = 0;
  for (const GroupContext& group : {SwitchGroup(8), MeshGroup()}) {
    for (const DType dtype : {DType::kU8, DType::kI32, DType::kI64, DType::kF32, DType::kBf16}) {
      for (OpRequest request : sums_of(dtype)) {
        for (const Algorithm algorithm : AlgorithmsOf(request.op)) {
          request.algorithm = algorithm;
          const Result<OperationPlan> plan = PlanOf(request, group);
          if (!plan.ok()) continue;
          ++planned;
          const bool floats = IsFloating(dtype);
          EXPECT_EQ(plan->roundings > 0, floats) << plan->summary << " by " << AlgorithmName(algorithm);
          if (algorithm == Algorithm::kNccl) continue;
          EXPECT_TRUE(plan->reduction_order.ends_with(floats ? ", fp32" : Text(", ", DTypeName(dtype))))
              << plan->summary << " by " << AlgorithmName(algorithm) << ": " << plan->reduction_order;
        }
      }
    }
  }
  EXPECT_GT(planned, 60);
}

class EveryWorld : public testing::TestWithParam<int> {};
#ifdef TANDEM_SANITIZED  // the time for all of them goes into more of the same
INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld, testing::Values(1, 2, 3));
#else
INSTANTIATE_TEST_SUITE_P(Worlds, EveryWorld, testing::Range(1, 9));
#endif

TEST_P(EveryWorld, AllReduceRunsAtAnyCount) {
  const int world = GetParam();
  for (bool nccl : {true, false}) {
    GroupContext group = SwitchGroup(world);
    group.nccl = nccl;
    for (int64_t count : {0, 1, 5, 7, 1000, 100003}) {
      OpRequest request = AllReduce(count, DType::kBf16);
      for (ReduceOp reduce_op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        request.reduce_op = reduce_op;
        EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
        EXPECT_EQ(RunAll(Symmetric(request), group), nccl ? 4 : 3);
        request.wire = WireType::kF32;
        EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
        request.wire = WireType::kOutput;
      }
      request.operands[1].alias_of = 0;
      EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
      request.operands[0].symmetric = request.operands[1].symmetric = true;
      EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
    }
    // Strided operands, and bulk.
    EXPECT_GT(RunAll(Request(Op::kAllReduce, {Tensor(Role::kInput, DType::kF32, {5, 7}, {1, 5}),
                                              Tensor(Role::kOutput, DType::kF32, {5, 7}, {10, 1})}),
                     group),
              0);
    EXPECT_GT(RunAll(AllReduce(int64_t{33} << 20), group), 0);
  }
}

TEST_P(EveryWorld, MovesRunAlongAnyDimension) {
  const int world = GetParam();
  for (bool nccl : {true, false}) {
    GroupContext group = SwitchGroup(world);
    group.nccl = nccl;
    for (int dim : {0, 1, 2, -1}) {
      for (int64_t extent : {0, 1, 3}) {
        std::vector<int64_t> shard = {2, 3, 5}, whole = shard;
        const int front = dim < 0 ? dim + 3 : dim;
        shard[front] = extent;
        whole[front] = extent * world;
        OpRequest gather = Request(Op::kAllGather, {Tensor(Role::kInput, DType::kI64, shard),
                                                    Tensor(Role::kOutput, DType::kI64, whole)});
        OpRequest scatter = Request(Op::kReduceScatter, {Tensor(Role::kInput, DType::kF16, whole),
                                                         Tensor(Role::kOutput, DType::kF16, shard)});
        OpRequest exchange = Request(Op::kAllToAll, {Tensor(Role::kInput, DType::kU8, whole),
                                                     Tensor(Role::kOutput, DType::kU8, whole)});
        for (OpRequest* request : {&gather, &scatter, &exchange}) {
          request->dim = dim;
          const int least = request->op == Op::kAllToAll ? 1 : 2;
          EXPECT_EQ(RunAll(*request, group), least + (nccl ? 1 : 0));
          EXPECT_EQ(RunAll(Symmetric(*request), group), least + (nccl ? 1 : 0));
        }
        for (OpRequest* request : {&gather, &scatter, &exchange}) {
          OpRequest in_place = *request;
          in_place.operands[1].alias_of = 0;
          const int least = request->op == Op::kAllToAll ? 1 : 2;
          EXPECT_EQ(RunAll(in_place, group), least + (nccl ? 1 : 0));
          in_place.operands[0].symmetric = in_place.operands[1].symmetric = true;
          EXPECT_EQ(RunAll(in_place, group), least + (nccl ? 1 : 0));
        }
        scatter.low_contention = true;
        EXPECT_EQ(RunAll(scatter, group), 1);
      }
    }
  }
}

TEST_P(EveryWorld, RootedAndLocalOperationsRun) {
  const int world = GetParam();
  const GroupContext group = SwitchGroup(world);
  for (int root = 0; root < world; ++root) {
    for (Op op : {Op::kBroadcast, Op::kReduce}) {
      OpRequest request = Request(op, {Tensor(Role::kInput, DType::kF32, {3, 7}, {1, 3}),
                                       Tensor(Role::kOutput, DType::kF32, {3, 7})});
      request.root = root;
      EXPECT_EQ(RunAll(request, group), 2);
      EXPECT_EQ(RunAll(Symmetric(request), group), 2);
      OpRequest in_place = request;
      in_place.operands[1].spec = in_place.operands[0].spec;
      in_place.operands[1].alias_of = 0;
      EXPECT_EQ(RunAll(in_place, group), 2);
    }
  }
  EXPECT_EQ(RunAll(Request(Op::kEmpty, {}), group), 1);
  EXPECT_EQ(RunAll(Request(Op::kBarrier, {}), group), 2);
  EXPECT_EQ(
      RunAll(Request(Op::kAsyncInputMatmul,
                     {Tensor(Role::kA, DType::kF32, {8, 3}), Tensor(Role::kB, DType::kF32, {3, 5}),
                      Tensor(Role::kC, DType::kF32, {8, 5}), Tensor(Role::kChunkSignals, DType::kI32, {4})}),
             group),
      1);
}

TEST_P(EveryWorld, AllGatherMatmulRuns) {
  const int world = GetParam();
  for (bool nccl : {true, false}) {
    GroupContext group = SwitchGroup(world);
    group.nccl = nccl;
    for (int dim : {0, 1, 2}) {
      for (int64_t extent : {0, 1, 5}) {
        for (DType dtype : {DType::kF32, DType::kBf16}) {
          std::vector<int64_t> a = {2, 3, 4};
          a[dim] = extent;
          std::vector<int64_t> whole = a;
          whole[dim] *= world;
          OpRequest request = Request(
              Op::kAllGatherMatmul,
              {Tensor(Role::kA, dtype, a), Tensor(Role::kB, dtype, {whole[2], 6}, {1, whole[2] + 1}),
               Tensor(Role::kB, dtype, {whole[2], 1}), Tensor(Role::kC, dtype, {whole[0], whole[1], 6}),
               Tensor(Role::kC, dtype, {whole[0], whole[1], 1}), Tensor(Role::kGatheredA, dtype, whole),
               Tensor(Role::kBias, dtype, {6}), Tensor(Role::kBias, DType::kF32, {1})});
          request.dim = dim;
          EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
          EXPECT_EQ(RunAll(Symmetric(request), group), nccl ? 4 : 3);
          request.operands.erase(request.operands.begin() + 5);
          EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
          for (int lanes : {1, 2, 3, 8}) {
            request.lanes = lanes;
            request.algorithm = Algorithm::kPipeline;
            EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
          }
        }
      }
    }
  }
}

// cuBLASLt adds no bf16 bias to a sum in fp32, and knows no result scale: the rounding into C applies them.
TEST(GatherAlongK, BiasAndResultScaleComeWithTheRounding) {
  for (DType out : {DType::kBf16, DType::kF32}) {
    for (Algorithm algorithm : {Algorithm::kPipeline, Algorithm::kRing, Algorithm::kUnfused}) {
      OpRequest request = GatherMatmul(2, 16, 24, 32, 1, DType::kBf16);
      request.algorithm = algorithm;
      request.operands[2].spec.dtype = out;
      request.operands.push_back(Tensor(Role::kB, DType::kBf16, {64, 24}));
      request.operands.push_back(Tensor(Role::kC, out, {16, 24}));
      for (int i = 0; i < 2; ++i) {
        request.operands.push_back(Tensor(Role::kBias, out, {24}));
        request.operands.push_back(Tensor(Role::kResultScale, DType::kF32, {1}));
      }
      const auto plan = PlanOf(request, SwitchGroup(2));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      std::vector<uint16_t> of_products, of_sums;  // the biases' slots
      for (const Step& step : ExpandedSteps(plan->programs[0])) {
        if (const auto* matmul = std::get_if<MatmulStep>(&step.work); matmul != nullptr && matmul->has_bias) {
          EXPECT_TRUE(matmul->has_result_scale);
          of_products.push_back(matmul->bias.ref.slot);
        }
        if (const auto* reduce = std::get_if<ReduceStep>(&step.work); reduce != nullptr && reduce->has_bias) {
          EXPECT_TRUE(reduce->has_result_scale);
          of_sums.push_back(reduce->bias.ref.slot);
        }
      }
      const std::vector<uint16_t> biases = {5, 7}, none;
      EXPECT_EQ(of_products, out == DType::kF32 ? biases : none);
      EXPECT_EQ(of_sums, out == DType::kF32 ? none : biases);
    }
  }
}

TEST_P(EveryWorld, ScalesTravelOrStayByTheirShape) {
  const int world = GetParam();
  const GroupContext group = SwitchGroup(world);
  struct Case {
    std::vector<int64_t> shape;
    std::string mode;
  };
  for (int dim : {0, 1, 2}) {
    std::vector<int64_t> a = {2, 3, 4};
    std::vector<int64_t> whole = a;
    whole[dim] *= world;
    for (const Case& scale :
         {Case{{}, "tensor_wise"}, Case{{1}, "tensor_wise"}, Case{{a[0], a[1], 1}, "row_wise_sharded"},
          Case{{whole[0], whole[1], 1},
               world == 1 || dim == 2 ? "row_wise_sharded" : "row_wise_replicated"}}) {
      OpRequest request =
          Request(Op::kAllGatherMatmul,
                  {Tensor(Role::kA, DType::kF8E4M3, a), Tensor(Role::kB, DType::kF8E5M2, {whole[2], 6}),
                   Tensor(Role::kC, DType::kBf16, {whole[0], whole[1], 6}),
                   Tensor(Role::kScaleA, DType::kF32, scale.shape),
                   Tensor(Role::kScaleB, DType::kF32, {1, 6}), Tensor(Role::kResultScale, DType::kF32, {1})});
      request.dim = dim;
      EXPECT_EQ(RunAll(request, group), 4);
      auto plan = PlanOf(request, group);
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      EXPECT_EQ(plan->scale_mode, scale.mode);
      request.algorithm = Algorithm::kRing;
      request.steps = 3 * world;
      EXPECT_EQ(Simulate(*PlanOf(request, group), OnAllRanks(request, world)), "");
    }
  }
}

TEST_P(EveryWorld, MatmulReduceScatterRuns) {
  const int world = GetParam();
  for (bool nccl : {true, false}) {
    GroupContext group = SwitchGroup(world);
    group.nccl = nccl;
    for (int dim : {0, 1, 2}) {
      for (int64_t extent : {0, 1, 3}) {
        for (WireType wire : {WireType::kOutput, WireType::kF32}) {
          std::vector<int64_t> product = {2, 3, 4};
          product[dim] = extent * world;
          std::vector<int64_t> c = product;
          c[dim] = extent;
          OpRequest request =
              Request(Op::kMatmulReduceScatter,
                      {Tensor(Role::kA, DType::kF8E4M3, {product[0], product[1], 5}),
                       Tensor(Role::kB, DType::kF8E4M3, {5, product[2]}), Tensor(Role::kC, DType::kBf16, c),
                       Tensor(Role::kScaleA, DType::kF32, {product[0], product[1], 1}),
                       Tensor(Role::kScaleB, DType::kF32, {1, product[2]}),
                       Tensor(Role::kBias, DType::kF32, {product[2]})});
          request.dim = dim;
          request.wire = wire;
          EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
          request.operands.resize(3);
          EXPECT_EQ(RunAll(request, group), nccl ? 4 : 3);
          for (int lanes : {1, 2, 5}) {
            for (int pieces : {1, 2, 4}) {
              request.algorithm = Algorithm::kRing;
              request.lanes = lanes;
              request.steps = pieces * world;
              auto plan = PlanOf(request, group);
              ASSERT_TRUE(plan.ok()) << plan.status().ToString();
              EXPECT_EQ(Simulate(*plan, OnAllRanks(request, world)), "");
              EXPECT_EQ(plan->steps, world == 1 ? 1 : pieces * world);
            }
          }
          request.steps = 0;
        }
      }
    }
  }
}

TEST_P(EveryWorld, MatmulAllReduceRunsAtAnyRowCount) {
  const int world = GetParam();
  for (bool nccl : {true, false}) {
    GroupContext group = SwitchGroup(world);
    group.nccl = nccl;
    for (int64_t m : {0, 1, 7, 33}) {
      for (WireType wire : {WireType::kOutput, WireType::kF32}) {
        OpRequest request = MatmulAllReduce(m, 6, 5, DType::kBf16);
        request.wire = wire;
        EXPECT_EQ(RunAll(request, group), nccl ? 3 : 2);
        EXPECT_EQ(RunAll(Symmetric(request), group), nccl ? 3 : 2);
        request.operands.push_back(Tensor(Role::kBias, DType::kBf16, {6}));
        for (int lanes : {1, 2, 4}) {
          request.lanes = lanes;
          EXPECT_EQ(RunAll(request, group), nccl ? 3 : 2);
        }
      }
    }
  }
}

TEST_P(EveryWorld, SendReceiveMatchesWhateverTheOrder) {
  const int world = GetParam();
  std::vector<OpRequest> requests;
  for (int r = 0; r < world; ++r) {
    // To each rank, itself too, two messages; receives are named before sends on odd ranks.
    OpRequest request = Request(Op::kSendReceive, {});
    for (int peer = 0; peer < world; ++peer) {
      for (int k = 0; k < 2; ++k) {
        request.operands.push_back(Tensor(Role::kInput, DType::kF32, {r + 1, k + 1}));
        request.operands.push_back(Tensor(Role::kOutput, DType::kF32, {peer + 1, k + 1}));
        const int slot = static_cast<int>(request.operands.size()) - 2;
        request.transfers.push_back({true, peer, slot});
        request.transfers.push_back({false, peer, slot + 1});
      }
    }
    if (r % 2 == 1)
      std::stable_partition(request.transfers.begin(), request.transfers.end(),
                            [](const Transfer& t) { return !t.send; });
    requests.push_back(std::move(request));
  }
  ASSERT_TRUE(CompareRequests(requests).ok()) << CompareRequests(requests).ToString();
  auto plan = MakePlan(requests, SwitchGroup(world));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Simulate(*plan, requests), "") << ListProgram(plan->programs[0]);
}

TEST(SendReceive, WritesSymmetricSlotsInPlace) {
  OpRequest request = Request(
      Op::kSendReceive, {Tensor(Role::kInput, DType::kF32, {9}), Tensor(Role::kOutput, DType::kF32, {9})});
  request.operands[1].symmetric = true;
  std::vector<OpRequest> requests = OnAllRanks(request, 3);
  for (int r = 0; r < 3; ++r) requests[r].transfers = {{true, (r + 1) % 3, 0}, {false, (r + 2) % 3, 1}};
  auto plan = MakePlan(requests, SwitchGroup(3));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Simulate(*plan, requests), "");
  EXPECT_EQ(plan->workspace_bytes, 0u);
  EXPECT_EQ(plan->bytes_moved, 36u);
}

// The end of a pipeline follows the last product, or the last sums, on lane 0: no event of another lane
// stands between them and done.
TEST_P(EveryWorld, PipelinesEndOnLaneZero) {
  const int world = GetParam();
  if (world == 1) return;
  OpRequest scatter = MatmulScatter(world, 64 * world, 32, 16), reduce = MatmulAllReduce(64 * world, 32, 16);
  scatter.algorithm = Algorithm::kPipeline;
  reduce.algorithm = Algorithm::kTiledTwoShot;
  for (const OpRequest& request : {scatter, reduce}) {
    auto plan = PlanOf(request, SwitchGroup(world));
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    for (const RankProgram& program : plan->programs) {
      EXPECT_GT(program.lanes, 1);
      EXPECT_EQ(program.steps.back().lane, 0) << ListProgram(program);
      for (const Step& step : program.steps) {
        const bool sums = std::holds_alternative<ReduceStep>(step.work);
        if (sums) {
          EXPECT_EQ(step.lane, 0) << ListProgram(program);
        }
        if (sums && request.op == Op::kMatmulReduceScatter) {
          EXPECT_TRUE(step.deps.empty()) << ListProgram(program);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::plan
