// Every field of a request: what is refused, and that the error names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

OpRequest Gather() {
  return Request(Op::kAllGather,
                 {Tensor(Role::kInput, DType::kF32, {3, 2}), Tensor(Role::kOutput, DType::kF32, {12, 2})});
}
OpRequest Fp8Gather() {
  return Request(Op::kAllGatherMatmul,
                 {Tensor(Role::kA, DType::kF8E4M3, {2, 3, 4}), Tensor(Role::kB, DType::kF8E4M3, {4, 5}),
                  Tensor(Role::kC, DType::kBf16, {8, 3, 5}), Tensor(Role::kScaleA, DType::kF32, {8, 3, 1}),
                  Tensor(Role::kScaleB, DType::kF32, {1, 5}), Tensor(Role::kBias, DType::kBf16, {5}),
                  Tensor(Role::kResultScale, DType::kF32, {})});
}
OpRequest Async() {
  return Request(Op::kAsyncInputMatmul,
                 {Tensor(Role::kA, DType::kF32, {8, 3}), Tensor(Role::kB, DType::kF32, {3, 5}),
                  Tensor(Role::kC, DType::kF32, {8, 5}), Tensor(Role::kChunkSignals, DType::kI32, {4})});
}

TEST(Attributes, AreChecked) {
  const OpRequest base = AllReduce(8);
  ExpectRefused(
      base, [](OpRequest* r) { r->op = static_cast<Op>(99); }, "op");
  ExpectRefused(
      base, [](OpRequest* r) { r->algorithm = static_cast<Algorithm>(77); }, "algorithm");
  ExpectRefused(
      base, [](OpRequest* r) { r->reduce_op = static_cast<ReduceOp>(9); }, "reduce_op");
  ExpectRefused(
      base, [](OpRequest* r) { r->wire = static_cast<WireType>(9); }, "wire");
  ExpectRefused(
      base, [](OpRequest* r) { r->on_unfused = static_cast<OnUnfused>(9); }, "on_unfused");
  ExpectRefused(
      base, [](OpRequest* r) { r->lanes = -1; }, "lanes", "-1");
  ExpectRefused(
      base, [](OpRequest* r) { r->lanes = 9; }, "lanes", "0 to 8");
  ExpectRefused(
      base, [](OpRequest* r) { r->steps = 6; }, "steps", "6 is no multiple of the world size 4");
  ExpectRefused(
      base, [](OpRequest* r) { r->steps = -4; }, "steps");
  ExpectRefused(
      base, [](OpRequest* r) { r->low_contention = true; }, "low_contention");
  ExpectRefused(
      base, [](OpRequest* r) { r->transfers.push_back({}); }, "transfers");
  OpRequest ring = MatmulScatter(4, 8, 8, 8);
  ring.algorithm = Algorithm::kRing;
  ExpectRefused(
      ring, [](OpRequest* r) { r->steps = 4 * 1000; }, "steps", "more than");
  ExpectRefused(
      ring, [](OpRequest* r) { r->algorithm = Algorithm::kPipeline, r->steps = 8; }, "steps",
      "only the ring has steps");
  OpRequest gather_ring = GatherMatmul(4, 8, 8, 8);
  gather_ring.algorithm = Algorithm::kRing;
  gather_ring.steps = 4 * 100;
  ExpectRefused(
      gather_ring, [](OpRequest* r) { r->steps = 4 * 200; }, "steps", "more than");
}

TEST(Attributes, OfReductions) {
  ExpectRefused(
      AllReduce(8), [](OpRequest* r) { r->reduce_op = static_cast<ReduceOp>(99); }, "reduce_op",
      "must be one of sum, avg, min, max, product, bit_and, bit_or, bit_xor");
  ExpectRefused(
      AllReduce(8), [](OpRequest* r) { r->reduce_op = ReduceOp::kBitXor; }, "reduce_op",
      "bit_xor of f32 is not defined");
  OpRequest product = GatherMatmul(4, 8, 8, 8);
  ExpectRefused(
      product, [](OpRequest* r) { r->reduce_op = ReduceOp::kMax; }, "reduce_op", "max of products");
  const auto reason = [](OpRequest request, ReduceOp op, Algorithm algorithm) {
    request.reduce_op = op;
    request.algorithm = algorithm;
    GroupContext group = SwitchGroup(4);
    group.packet_kernels = true;
    return PlanOf(request, group).status().message();
  };
  EXPECT_THAT(reason(AllReduce(8), ReduceOp::kProduct, Algorithm::kLowLatency),
              HasSubstr("packets carry sums and averages, not product"));
  EXPECT_THAT(reason(AllReduce(8, DType::kI32), ReduceOp::kBitOr, Algorithm::kNccl),
              HasSubstr("NCCL has no bit_or"));
}

TEST(Attributes, OfIntegersAndRoots) {
  OpRequest integers = AllReduce(8, DType::kI32);
  ExpectRefused(
      integers, [](OpRequest* r) { r->reduce_op = ReduceOp::kAvg; }, "reduce_op", "avg of i32");
  ExpectRefused(
      integers, [](OpRequest* r) { r->wire = WireType::kF32; }, "wire");
  OpRequest broadcast = AllReduce(8);
  broadcast.op = Op::kBroadcast;
  ExpectRefused(
      broadcast, [](OpRequest* r) { r->root = 4; }, "root", "rank 4 is not in a world of 4");
  ExpectRefused(
      broadcast, [](OpRequest* r) { r->root = -1; }, "root");
}

TEST(WorldSize, IsChecked) {
  const OpRequest request = AllReduce(8);
  for (int world : {0, 9}) {
    GroupContext group;
    group.topology.gpus.resize(world);
    const Status status = MakePlan(OnAllRanks(request, world), group).status();
    EXPECT_EQ(status.detail().field, "world_size") << status.ToString();
  }
  const Status status = MakePlan(OnAllRanks(request, 3), SwitchGroup(4)).status();
  EXPECT_EQ(status.detail().field, "world_size");
  EXPECT_THAT(status.message(), HasSubstr("3 requests for a group of 4 ranks"));
}

TEST(Operands, AreCheckedByThemselves) {
  const OpRequest base = AllReduce(8);
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].spec.dtype = static_cast<DType>(50); }, "operands[1].dtype");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].spec.shape = {-1}; }, "operands[0].shape", "negative");
  ExpectRefused(
      base,
      [](OpRequest* r) {
        r->operands[0].spec.shape = {int64_t{1} << 40, int64_t{1} << 40};
      },
      "operands[0].shape", "overflows");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].spec.shape = {int64_t{1} << 45}; }, "operands[0].shape",
      "64 TiB");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].spec.shape.assign(9, 1); }, "operands[0].shape", "at most 8");
  ExpectRefused(
      base,
      [](OpRequest* r) {
        r->operands[0].spec.strides = {1, 1};
      },
      "operands[0].strides");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].spec.strides = {-1}; }, "operands[0].strides", "negative");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].spec.strides = {int64_t{1} << 60}; }, "operands[0].strides");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[1].spec.strides = {0}; }, "operands[1].strides", "overlap");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands.resize(65, r->operands[0]); }, "operands", "at most 64");
  // An input may repeat its elements.
  OpRequest repeated = base;
  repeated.operands[0].spec.strides = {0};
  EXPECT_TRUE(PlanOf(repeated, SwitchGroup(4)).ok());
}

TEST(Operands, HaveTheirRoles) {
  const OpRequest base = AllReduce(8);
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].role = static_cast<Role>(0); }, "operands[0].role");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands[0].role = static_cast<Role>(40); }, "operands[0].role");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands.pop_back(); }, "operands", "needs an operand of role output");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands.push_back(r->operands[0]); }, "operands[2].role");
  ExpectRefused(
      base, [](OpRequest* r) { r->operands.push_back(Tensor(Role::kBias, DType::kF32, {8})); },
      "operands[2].role", "no operand of role bias");
  ExpectRefused(
      Request(Op::kBarrier, {}), [](OpRequest* r) { *r = Request(Op::kBarrier, AllReduce(8).operands); },
      "operands[0].role");
}

TEST(Collectives, CheckShapes) {
  ExpectRefused(
      AllReduce(8), [](OpRequest* r) { r->operands[1].spec.shape = {9}; }, "operands[1].shape",
      "must be [8], not [9]");
  ExpectRefused(
      AllReduce(8), [](OpRequest* r) { r->operands[1].spec.dtype = DType::kF16; }, "operands[1].dtype",
      "must be f32");
  ExpectRefused(
      Gather(), [](OpRequest* r) { r->dim = 2; }, "dim", "out of range for 2 dimensions");
  ExpectRefused(
      Gather(), [](OpRequest* r) { r->dim = -3; }, "dim");
  ExpectRefused(
      Gather(),
      [](OpRequest* r) {
        r->operands[1].spec.shape = {3, 8};
      },
      "operands[1].shape", "must be [12, 2]");
  OpRequest scatter = Request(
      Op::kReduceScatter, {Tensor(Role::kInput, DType::kF32, {8}), Tensor(Role::kOutput, DType::kF32, {2})});
  ExpectRefused(
      scatter, [](OpRequest* r) { r->operands[0].spec.shape = {10}; }, "operands[0].shape",
      "extent 10 along dimension 0 of [10] is not divisible by the world size 4");
  ExpectRefused(
      scatter, [](OpRequest* r) { r->operands[0].spec.shape = r->operands[1].spec.shape = {}; }, "dim");
}

TEST(Matmuls, CheckShapesAndTypes) {
  const OpRequest gather = GatherMatmul(4, 8, 6, 5);
  ExpectRefused(
      gather, [](OpRequest* r) { r->operands[0].spec.shape = {40}; }, "operands[0].shape",
      "at least 2 dimensions");
  ExpectRefused(
      gather, [](OpRequest* r) { r->dim = 2; }, "dim");
  ExpectRefused(
      gather,
      [](OpRequest* r) {
        r->operands[1].spec.shape = {5, 6, 1};
      },
      "operands[1].shape");
  ExpectRefused(
      gather,
      [](OpRequest* r) {
        r->operands[1].spec.shape = {4, 6};
      },
      "operands[1].shape", "has 4 rows; A's K is 5");
  ExpectRefused(
      gather,
      [](OpRequest* r) {
        r->operands[2].spec.shape = {8, 6};
      },
      "operands[2].shape", "must be [32, 6], not [8, 6]");
  ExpectRefused(
      gather, [](OpRequest* r) { r->operands[0].spec.dtype = DType::kI32; }, "operands[0].dtype");
  ExpectRefused(
      gather, [](OpRequest* r) { r->operands[1].spec.dtype = DType::kBf16; }, "operands[1].dtype");
  ExpectRefused(
      gather, [](OpRequest* r) { r->operands[2].spec.dtype = DType::kBf16; }, "operands[2].dtype");
  ExpectRefused(
      gather, [](OpRequest* r) { r->operands.push_back(r->operands[1]); }, "operands",
      "2 operands of role b but 1 of role c");
  ExpectRefused(
      gather,
      [](OpRequest* r) {
        r->operands.push_back(Tensor(Role::kGatheredA, DType::kF32, {8, 5}));
      },
      "operands[3].shape", "must be [32, 5]");
  ExpectRefused(
      gather,
      [](OpRequest* r) {
        r->operands.push_back(Tensor(Role::kGatheredA, DType::kF16, {32, 5}));
      },
      "operands[3].dtype");
  const OpRequest rows = MatmulScatter(4, 8, 8, 5), columns = MatmulScatter(4, 8, 8, 5, 1);
  ExpectRefused(
      rows,
      [](OpRequest* r) {
        r->operands[0].spec.shape = {9, 5};
      },
      "operands[0].shape", "extent 9 along dimension 0 is not divisible by the world size 4");
  ExpectRefused(
      columns,
      [](OpRequest* r) {
        r->operands[1].spec.shape = {5, 9};
      },
      "operands[1].shape", "its 9 columns are not divisible");
  ExpectRefused(
      rows, [](OpRequest* r) { r->operands.push_back(Tensor(Role::kScaleA, DType::kF32, {})); },
      "operands[3].role", "fp8");
}

TEST(Scales, AreChecked) {
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[3].spec.shape = {7}; }, "operands[3].shape",
      "[7] is neither one element, nor [2, 3, 1], nor [8, 3, 1]");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[3].spec.dtype = DType::kF16; }, "operands[3].dtype");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[4].spec.shape = {5}; }, "operands[4].shape", "[1, 5]");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[4].spec.dtype = DType::kBf16; }, "operands[4].dtype");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands.push_back(r->operands[4]); }, "operands",
      "2 operands of role scale_b for 1 of role b");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[5].spec.shape = {4}; }, "operands[5].shape");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[5].spec.dtype = DType::kF16; }, "operands[5].dtype");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[6].spec.shape = {2}; }, "operands[6].shape");
  ExpectRefused(
      Fp8Gather(), [](OpRequest* r) { r->operands[6].spec.dtype = DType::kF16; }, "operands[6].dtype");
  OpRequest scatter = MatmulScatter(4, 8, 8, 5, 0, DType::kF8E4M3);
  scatter.operands[2].spec.dtype = DType::kBf16;
  scatter.operands.push_back(Tensor(Role::kScaleA, DType::kF32, {8, 1}));
  ExpectRefused(
      scatter,
      [](OpRequest* r) {
        r->operands[3].spec.shape = {2, 1};
      },
      "operands[3].shape", "neither one element, nor [8, 1]");
}

TEST(AsyncInput, NamesNoElementOverAndOverAlongK) {
  const auto operand = [](size_t slot, std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return [=](OpRequest* r) { r->operands[slot].spec = {DType::kF32, shape, strides}; };
  };
  const OpRequest base = Async();
  const int64_t k = base.operands[0].spec.shape[1];
  ExpectRefused(base, operand(0, base.operands[0].spec.shape, {1, 0}), "operands[0].strides", "0 along K");
  ExpectRefused(base, operand(1, base.operands[1].spec.shape, {0, 1}), "operands[1].strides", "0 along K");
  // No operand without elements is named.
  OpRequest empty = base;
  operand(0, {0, k}, {1, 0})(&empty);
  operand(2, {0, base.operands[2].spec.shape[1]}, {})(&empty);
  operand(3, {1}, {})(&empty);
  empty.operands[3].spec.dtype = DType::kI32;
  EXPECT_TRUE(PlanOf(empty, SwitchGroup(4)).ok());
  // Rows of A, or columns of B, may be one and the same.
  OpRequest repeated = base;
  operand(0, base.operands[0].spec.shape, {0, 1})(&repeated);
  operand(1, base.operands[1].spec.shape, {1, 0})(&repeated);
  EXPECT_TRUE(PlanOf(repeated, SwitchGroup(4)).ok());
  EXPECT_GT(k, 1);
}

TEST(AsyncInput, IsChecked) {
  ExpectRefused(
      Async(), [](OpRequest* r) { r->operands[3].spec.dtype = DType::kF32; }, "operands[3].dtype");
  ExpectRefused(
      Async(), [](OpRequest* r) { r->operands[3].spec.shape = {0}; }, "operands[3].shape");
  ExpectRefused(
      Async(), [](OpRequest* r) { r->operands[3].spec.shape = {3}; }, "operands[3].shape",
      "8 rows are not divisible into 3 chunks");
  const auto chunks_of_a_row = [](int64_t chunks) {
    return [chunks](OpRequest* r) {
      r->operands[0].spec = {DType::kF32, {chunks, 3}, {}};
      r->operands[2].spec = {DType::kF32, {chunks, 5}, {}};
      r->operands[3].spec.shape = {chunks};
    };
  };
  OpRequest most = Async();
  chunks_of_a_row(kMaxChunkSignals)(&most);
  EXPECT_TRUE(PlanOf(most, SwitchGroup(4)).ok());
  ExpectRefused(Async(), chunks_of_a_row(kMaxChunkSignals + 1), "operands[3].shape",
                "129 chunks are more than 128");
  ExpectRefused(
      Async(), [](OpRequest* r) { r->operands[3].spec.strides = {2}; }, "operands[3].strides");
  ExpectRefused(
      Async(), [](OpRequest* r) { r->chunk_pivot = 4; }, "chunk_pivot", "chunk 4 of 4");
  ExpectRefused(
      Async(), [](OpRequest* r) { r->chunk_pivot = -1; }, "chunk_pivot");
}

TEST(Compare, NamesTheFieldAndEachRanksValue) {
  const auto expect = [](const std::function<void(OpRequest*)>& change, const std::string& field,
                         const std::string& text) {
    std::vector<OpRequest> requests = OnAllRanks(Gather(), 3);
    ASSERT_TRUE(CompareRequests(requests).ok());
    change(&requests[2]);
    const Status status = CompareRequests(requests);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.detail().reason, "FIELD_MISMATCH");
    EXPECT_EQ(status.detail().field, field);
    EXPECT_EQ(status.message(), field + " differs: " + text);
  };
  expect([](OpRequest* r) { r->op = Op::kReduce; }, "op",
         "rank 0 has all_gather, rank 1 has all_gather, rank 2 has reduce");
  expect([](OpRequest* r) { r->dim = 1; }, "dim", "rank 0 has 0, rank 1 has 0, rank 2 has 1");
  expect([](OpRequest* r) { r->reduce_op = ReduceOp::kAvg; }, "reduce_op",
         "rank 0 has sum, rank 1 has sum, rank 2 has avg");
  expect([](OpRequest* r) { r->root = 1; }, "root", "rank 0 has 0, rank 1 has 0, rank 2 has 1");
  expect([](OpRequest* r) { r->wire = WireType::kF32; }, "wire",
         "rank 0 has output, rank 1 has output, rank 2 has f32");
  expect([](OpRequest* r) { r->fast_accumulation = false; }, "fast_accumulation",
         "rank 0 has true, rank 1 has true, rank 2 has false");
  expect([](OpRequest* r) { r->low_contention = true; }, "low_contention",
         "rank 0 has false, rank 1 has false, rank 2 has true");
  expect([](OpRequest* r) { r->algorithm = Algorithm::kSm; }, "algorithm",
         "rank 0 has auto, rank 1 has auto, rank 2 has sm");
  expect([](OpRequest* r) { r->steps = 4; }, "steps", "rank 0 has 0, rank 1 has 0, rank 2 has 4");
  expect([](OpRequest* r) { r->lanes = 4; }, "lanes", "rank 0 has 0, rank 1 has 0, rank 2 has 4");
  expect([](OpRequest* r) { r->on_unfused = OnUnfused::kWarn; }, "on_unfused",
         "rank 0 has allow, rank 1 has allow, rank 2 has warn");
  expect([](OpRequest* r) { r->norm_epsilon = 0.5f; }, "norm_epsilon",
         "rank 0 has 0.000000, rank 1 has 0.000000, rank 2 has 0.500000");
  expect([](OpRequest* r) { r->restartable = true; }, "restartable",
         "rank 0 has false, rank 1 has false, rank 2 has true");
  expect([](OpRequest* r) { r->operands.pop_back(); }, "operands",
         "rank 0 has 2 operands, rank 1 has 2 operands, rank 2 has 1 operands");
  expect([](OpRequest* r) { r->operands[1].role = Role::kC; }, "operands[1].role",
         "rank 0 has output, rank 1 has output, rank 2 has c");
  expect([](OpRequest* r) { r->operands[0].spec.dtype = DType::kF16; }, "operands[0].dtype",
         "rank 0 has f32, rank 1 has f32, rank 2 has f16");
  expect(
      [](OpRequest* r) {
        r->operands[0].spec.shape = {3, 3};
      },
      "operands[0].shape", "rank 0 has [3, 2], rank 1 has [3, 2], rank 2 has [3, 3]");
  expect(
      [](OpRequest* r) {
        r->operands[0].spec.strides = {1, 3};
      },
      "operands[0].strides", "rank 0 has [2, 1], rank 1 has [2, 1], rank 2 has [1, 3]");
  expect([](OpRequest* r) { r->operands[1].symmetric = true; }, "operands[1].symmetric",
         "rank 0 has false, rank 1 has false, rank 2 has true");
  expect([](OpRequest* r) { r->operands[1].alias_of = 0; }, "operands[1].alias_of",
         "rank 0 has -1, rank 1 has -1, rank 2 has 0");
}

OpRequest Norm() {
  OpRequest request =
      Request(Op::kAllReduce,
              {Tensor(Role::kInput, DType::kBf16, {4, 6}), Tensor(Role::kOutput, DType::kBf16, {4, 6}),
               Tensor(Role::kNormWeight, DType::kBf16, {6}), Tensor(Role::kResidual, DType::kBf16, {4, 6}),
               Tensor(Role::kResidualOutput, DType::kBf16, {4, 6})});
  request.norm_epsilon = 1e-6f;
  return request;
}

TEST(Norms, AreChecked) {
  const OpRequest base = Norm();
  EXPECT_THAT(MustPlan(base, SwitchGroup(4)).summary, HasSubstr("+ residual, RMSNorm"));
  const auto refused = [&](const std::function<void(OpRequest*)>& change, const std::string& field,
                           const std::string& text) { ExpectRefused(base, change, field, text); };
  refused([](OpRequest* r) { r->operands.erase(r->operands.begin() + 2); }, "operands[2].role",
          "a residual without a norm_weight");
  refused([](OpRequest* r) { r->operands.pop_back(); }, "operands[3].role", "come together");
  refused([](OpRequest* r) { r->operands.erase(r->operands.begin() + 3); }, "operands[3].role",
          "come together");
  refused([](OpRequest* r) { r->norm_epsilon = -1; }, "norm_epsilon", "from 0 on");
  refused([](OpRequest* r) { r->norm_epsilon = std::numeric_limits<float>::quiet_NaN(); }, "norm_epsilon",
          "from 0 on");
  refused([](OpRequest* r) { r->operands.resize(2); }, "norm_epsilon", "without a norm_weight");
  refused([](OpRequest* r) { r->operands[2].spec.shape = {4}; }, "operands[2].shape", "must be [6], not [4]");
  refused([](OpRequest* r) { r->operands[2].spec.dtype = DType::kF32; }, "operands[2].dtype",
          "like the output");
  refused([](OpRequest* r) { r->operands[3].spec.shape = {6, 4}; }, "operands[3].shape", "must be [4, 6]");
  refused([](OpRequest* r) { r->operands[4].spec.strides = {8, 1}; }, "operands[4].strides", "contiguous");
  refused([](OpRequest* r) { r->operands[1].spec.strides = {1, 4}; }, "operands[1].strides", "contiguous");
  refused([](OpRequest* r) { r->operands[4].alias_of = 1; }, "operands[4].alias_of",
          "residual_output its residual");
  refused(
      [](OpRequest* r) {
        for (Operand& o : r->operands) o.spec.dtype = DType::kF8E4M3;
      },
      "operands[1].dtype", "not f8e4m3");
  refused([](OpRequest* r) { r->op = Op::kBroadcast; }, "operands[2].role", "no operand of role norm_weight");
  OpRequest scalar = base;
  scalar.operands.resize(3);
  scalar.operands[0].spec.shape = scalar.operands[1].spec.shape = {};
  EXPECT_EQ(PlanOf(scalar, SwitchGroup(4)).status().detail().field, "operands[1].shape");
}

TEST(Norms, QuantizationIsChecked) {
  OpRequest base = Norm();
  base.operands.push_back(Tensor(Role::kQuantizedOutput, DType::kF8E4M3, {4, 6}));
  base.operands.push_back(Tensor(Role::kScaleOutput, DType::kF32, {4, 1}));
  EXPECT_THAT(MustPlan(base, SwitchGroup(4)).summary, HasSubstr("RMSNorm, f8e4m3"));
  const auto refused = [&](const std::function<void(OpRequest*)>& change, const std::string& field,
                           const std::string& text) { ExpectRefused(base, change, field, text); };
  refused([](OpRequest* r) { r->operands.pop_back(); }, "operands[5].role", "needs a static_scale or");
  refused([](OpRequest* r) { r->operands.erase(r->operands.begin() + 5); }, "operands[5].role",
          "a scale without a quantized_output");
  refused([](OpRequest* r) { r->operands.push_back(Tensor(Role::kStaticScale, DType::kF32, {1})); },
          "operands[5].role", "no two");
  refused([](OpRequest* r) { r->operands[5].spec.dtype = DType::kF8E5M2; }, "operands[5].dtype", "f8e4m3");
  refused([](OpRequest* r) { r->operands[5].spec.shape = {6, 4}; }, "operands[5].shape", "must be [4, 6]");
  refused([](OpRequest* r) { r->operands[5].spec.strides = {8, 1}; }, "operands[5].strides", "contiguous");
  refused([](OpRequest* r) { r->operands[5].alias_of = 0; }, "operands[5].alias_of", "only the output");
  refused([](OpRequest* r) { r->operands[6].spec.dtype = DType::kBf16; }, "operands[6].dtype", "must be f32");
  refused(
      [](OpRequest* r) {
        r->operands[6].spec.shape = {4, 2};
      },
      "operands[6].shape", "must be [4, 1], or");
  refused([](OpRequest* r) { r->operands[6].spec.shape = {4}; }, "operands[6].shape", "must be [4, 1], or");
  refused([](OpRequest* r) { r->operands[6] = Tensor(Role::kStaticScale, DType::kF32, {4}); },
          "operands[6].shape", "one element");
  refused([](OpRequest* r) { r->operands.erase(r->operands.begin() + 2, r->operands.begin() + 5); },
          "operands[2].role", "a quantized_output without a norm_weight");
  OpRequest rows = base;
  for (const size_t slot : {0u, 1u, 3u, 4u, 5u}) rows.operands[slot].spec.shape = {2, 3, 6};
  rows.operands[6].spec = {DType::kF32, {2, 3, 1}, {4, 1, 1}};
  EXPECT_EQ(PlanOf(rows, SwitchGroup(4)).status().detail().field, "operands[6].strides");
}

TEST(Compare, LeavesRanksTheirOwnFields) {
  std::vector<OpRequest> requests = OnAllRanks(Gather(), 2);
  requests[1].chunk_pivot = 1;
  requests[1].operands[0].spec.strides = {2, 1};  // contiguous, said in words
  EXPECT_TRUE(CompareRequests(requests).ok());
  requests = OnAllRanks(Request(Op::kSendReceive, {Tensor(Role::kInput, DType::kF32, {9})}), 2);
  requests[1].operands[0].spec.shape = {4};
  requests[1].transfers.push_back({true, 0, 0});
  EXPECT_TRUE(CompareRequests(requests).ok());
  requests[1].operands[0].symmetric = true;
  const Status status = CompareRequests(requests);
  EXPECT_EQ(status.detail().field, "operands[0]");
  EXPECT_THAT(status.message(), HasSubstr("rank 1 has symmetric f32[4]"));
  EXPECT_EQ(CompareRequests({}).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::plan
