// Every operation as the planner plans it, run by W ranks in one process: with and without delayed
// visibility, with lanes aliased onto 1 to 3 queues, several launches in flight back to back. Values are
// small integers, so that results are exact in any order of summation and are compared bit by bit with a
// plain reference.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/executor/tests/planned_runner.h"
#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {
namespace {

Operand MakeOperand(Role role, std::vector<int64_t> shape, bool symmetric = false,
                    DType dtype = DType::kF32) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = dtype;
  operand.spec.shape = std::move(shape);
  operand.symmetric = symmetric;
  return operand;
}

Values Multiply(const Values& a, const Values& b, size_t k, size_t n) {
  size_t m = a.size() / k;
  Values c(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t l = 0; l < k; ++l) {
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

Values SumOverRanks(const Tensors& tensors, size_t slot) {
  Values sum = tensors[0][slot];
  for (size_t rank = 1; rank < tensors.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += tensors[rank][slot][i];
  }
  return sum;
}

Values Concatenate(const Tensors& tensors, size_t slot) {
  Values all;
  for (const auto& rank : tensors) all.insert(all.end(), rank[slot].begin(), rank[slot].end());
  return all;
}

Values Part(const Values& values, size_t part, size_t parts) {
  size_t size = values.size() / parts;
  return Values(values.begin() + static_cast<std::ptrdiff_t>(part * size),
                values.begin() + static_cast<std::ptrdiff_t>((part + 1) * size));
}

Case AllReduceCase(Algorithm algorithm, int64_t count, bool in_place, bool symmetric,
                   DType dtype = DType::kF32) {
  Case test;
  test.name = "all_reduce " + std::string(AlgorithmName(algorithm)) + " n=" + std::to_string(count) +
              (in_place ? " in place" : "") + (symmetric ? " symmetric" : "") + " " +
              std::string(DTypeName(dtype));
  test.request = [=](int, int) {
    OpRequest request;
    request.op = Op::kAllReduce;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kInput, {count}, symmetric, dtype),
                        MakeOperand(Role::kOutput, {count}, symmetric, dtype)};
    if (in_place) request.operands[1].alias_of = 0;
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    Values sum = SumOverRanks(tensors, 0);
    for (auto& rank : tensors) rank[1] = sum;
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 4, 8};
  return test;
}

Case AllGatherCase(Algorithm algorithm, bool symmetric, bool in_place = false) {
  Case test;
  test.name = "all_gather " + std::string(AlgorithmName(algorithm)) + (symmetric ? " symmetric" : "") +
              (in_place ? " in place" : "");
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllGather;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kInput, {5, 3}, symmetric),
                        MakeOperand(Role::kOutput, {5 * world_size, 3}, symmetric)};
    if (in_place) request.operands[1].alias_of = 0;
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    Values all = Concatenate(tensors, 0);
    for (auto& rank : tensors) rank[1] = all;
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

Case ReduceScatterCase(Algorithm algorithm, bool in_place = false) {
  Case test;
  test.name = "reduce_scatter " + std::string(AlgorithmName(algorithm)) + (in_place ? " in place" : "");
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kReduceScatter;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kInput, {7 * world_size, 3}), MakeOperand(Role::kOutput, {7, 3})};
    if (in_place) request.operands[1].alias_of = 0;
    return request;
  };
  test.compute = [](int world_size, Tensors& tensors) {
    Values sum = SumOverRanks(tensors, 0);
    for (size_t r = 0; r < tensors.size(); ++r) tensors[r][1] = Part(sum, r, static_cast<size_t>(world_size));
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

Case AllGatherMatmulCase(Algorithm algorithm, int steps_per_rank, int lanes, bool symmetric,
                         int64_t rows = 6) {
  constexpr int64_t kN = 5, kK = 8;
  Case test;
  test.name = "all_gather_matmul " + std::string(AlgorithmName(algorithm)) +
              " S/W=" + std::to_string(steps_per_rank) + " lanes=" + std::to_string(lanes) +
              (symmetric ? " symmetric" : "");
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllGatherMatmul;
    request.algorithm = algorithm;
    request.steps = steps_per_rank * world_size;
    request.lanes = lanes;
    request.operands = {MakeOperand(Role::kA, {rows, kK}, symmetric), MakeOperand(Role::kB, {kK, kN}),
                        MakeOperand(Role::kC, {rows * world_size, kN}),
                        MakeOperand(Role::kGatheredA, {rows * world_size, kK}, symmetric)};
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    Values gathered = Concatenate(tensors, 0);
    for (auto& rank : tensors) {
      rank[2] = Multiply(gathered, rank[1], kK, kN);
      rank[3] = gathered;
    }
  };
  test.output_slots = {2, 3};
  return test;
}

Case MatmulReduceScatterCase(Algorithm algorithm, int steps_per_rank, int lanes, int64_t rows = 6,
                             int64_t columns = 5) {
  constexpr int64_t kK = 8;
  Case test;
  test.name = "matmul_reduce_scatter " + std::string(AlgorithmName(algorithm)) +
              " S/W=" + std::to_string(steps_per_rank) + " lanes=" + std::to_string(lanes);
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kMatmulReduceScatter;
    request.algorithm = algorithm;
    request.steps = steps_per_rank * world_size;
    request.lanes = lanes;
    request.operands = {MakeOperand(Role::kA, {rows * world_size, kK}), MakeOperand(Role::kB, {kK, columns}),
                        MakeOperand(Role::kC, {rows, columns})};
    return request;
  };
  test.compute = [=](int world_size, Tensors& tensors) {
    for (auto& rank : tensors) rank[2] = Multiply(rank[0], rank[1], kK, columns);
    Values sum = SumOverRanks(tensors, 2);
    for (size_t r = 0; r < tensors.size(); ++r) tensors[r][2] = Part(sum, r, static_cast<size_t>(world_size));
  };
  test.output_slots = {2};
  return test;
}

Case MatmulAllReduceCase(Algorithm algorithm, int64_t rows = 13, int64_t columns = 5) {
  constexpr int64_t kK = 8;
  Case test;
  test.name = "matmul_all_reduce " + std::string(AlgorithmName(algorithm));
  test.request = [=](int, int) {
    OpRequest request;
    request.op = Op::kMatmulAllReduce;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kA, {rows, kK}), MakeOperand(Role::kB, {kK, columns}),
                        MakeOperand(Role::kC, {rows, columns})};
    return request;
  };
  test.compute = [=](int, Tensors& tensors) {
    for (auto& rank : tensors) rank[2] = Multiply(rank[0], rank[1], kK, columns);
    Values sum = SumOverRanks(tensors, 2);
    for (auto& rank : tensors) rank[2] = sum;
  };
  test.output_slots = {2};
  return test;
}

Case RootedCase(Op op) {
  Case test;
  test.name = std::string(OpName(op));
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = op;
    request.root = world_size - 1;
    request.operands = {MakeOperand(Role::kInput, {11}), MakeOperand(Role::kOutput, {11})};
    return request;
  };
  test.compute = [op](int, Tensors& tensors) {
    if (op == Op::kReduce) tensors.back()[1] = SumOverRanks(tensors, 0);
    if (op == Op::kBroadcast) {
      for (auto& rank : tensors) rank[1] = tensors.back()[0];
    }
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

Case AllToAllCase() {
  Case test;
  test.name = "all_to_all";
  test.request = [](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllToAll;
    request.operands = {MakeOperand(Role::kInput, {2 * world_size, 3}),
                        MakeOperand(Role::kOutput, {2 * world_size, 3})};
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    for (size_t r = 0; r < tensors.size(); ++r) {
      tensors[r][1].clear();
      for (auto& peer : tensors) {
        Values part = Part(peer[0], r, tensors.size());
        tensors[r][1].insert(tensors[r][1].end(), part.begin(), part.end());
      }
    }
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

// Every rank sends to its successor and receives from its predecessor.
Case SendReceiveCase() {
  Case test;
  test.name = "send_receive";
  test.request = [](int rank, int world_size) {
    OpRequest request;
    request.op = Op::kSendReceive;
    request.operands = {MakeOperand(Role::kInput, {9}), MakeOperand(Role::kOutput, {9})};
    request.transfers = {{true, (rank + 1) % world_size, 0},
                         {false, (rank + world_size - 1) % world_size, 1}};
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    for (size_t r = 0; r < tensors.size(); ++r)
      tensors[r][1] = tensors[(r + tensors.size() - 1) % tensors.size()][0];
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

Case AsyncInputMatmulCase(int64_t chunks) {
  Case test;
  test.name = "async_input_matmul of " + std::to_string(chunks);
  test.request = [chunks](int, int) {
    OpRequest request;
    request.op = Op::kAsyncInputMatmul;
    request.chunk_pivot = chunks > 1 ? 1 : 0;
    request.operands = {MakeOperand(Role::kA, {8, 6}), MakeOperand(Role::kB, {6, 5}),
                        MakeOperand(Role::kC, {8, 5}),
                        MakeOperand(Role::kChunkSignals, {chunks}, false, DType::kI32)};
    if (chunks == 1) request.operands[3].spec.strides = {0};  // of a single word it may be any
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    for (auto& rank : tensors) rank[2] = Multiply(rank[0], rank[1], 6, 5);
  };
  test.output_slots = {2};
  test.world_sizes = {1, 2};
  return test;
}

Case BareCase(Op op) {
  Case test;
  test.name = std::string(OpName(op));
  test.request = [op](int, int) {
    OpRequest request;
    request.op = op;
    return request;
  };
  test.compute = [](int, Tensors&) {};
  return test;
}

void RunCase(const Case& test) {
  for (int world_size : test.world_sizes) {
    if (world_size > (test.cube_mesh ? MostRanks() : MostPlannedRanks())) continue;
    if (SharedMachine() != nullptr) {
      RunPlanned(test, world_size, 0, 0);
      if (testing::Test::HasFatalFailure()) return;
      continue;
    }
    for (int queues = 1; queues <= 3; ++queues) {
      RunPlanned(test, world_size, queues, 0);
      if (testing::Test::HasFatalFailure()) return;
    }
    RunPlanned(test, world_size, 2, 100);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PlannedTest, AllReduce) {
  for (Algorithm algorithm :
       {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kCopyEngine, Algorithm::kNccl}) {
    for (int64_t count : {0, 1, 1003}) RunCase(AllReduceCase(algorithm, count, false, false));
    RunCase(AllReduceCase(algorithm, 77, true, false));
    RunCase(AllReduceCase(algorithm, 77, false, true));
    RunCase(AllReduceCase(algorithm, 78, true, true, DType::kBf16));
  }
}

TEST(PlannedTest, HybridCubeMeshAllReduce) {
  if (MostRanks() < 8) GTEST_SKIP() << "needs 8 ranks";
  Case test = AllReduceCase(Algorithm::kHybridCubeMesh, 501, false, false);
  test.world_sizes = {8};
  test.cube_mesh = true;
  RunCase(test);
}

TEST(PlannedTest, AllGatherAndReduceScatter) {
  for (Algorithm algorithm : {Algorithm::kCopyEngine, Algorithm::kSm, Algorithm::kNccl}) {
    RunCase(AllGatherCase(algorithm, false));
    RunCase(AllGatherCase(algorithm, true));
    RunCase(ReduceScatterCase(algorithm));
    for (bool symmetric : {false, true}) RunCase(AllGatherCase(algorithm, symmetric, true));
    RunCase(ReduceScatterCase(algorithm, true));
  }
}

TEST(PlannedTest, AllGatherMatmul) {
  RunCase(AllGatherMatmulCase(Algorithm::kNccl, 0, 0, false));
  for (bool symmetric : {false, true}) {
    RunCase(AllGatherMatmulCase(Algorithm::kUnfused, 0, 0, symmetric));
    RunCase(AllGatherMatmulCase(Algorithm::kPipeline, 0, 0, symmetric));
    RunCase(AllGatherMatmulCase(Algorithm::kRing, 2, 3, symmetric));
  }
}

TEST(PlannedTest, MatmulReduceScatter) {
  RunCase(MatmulReduceScatterCase(Algorithm::kUnfused, 0, 0));
  RunCase(MatmulReduceScatterCase(Algorithm::kNccl, 0, 0));
  RunCase(MatmulReduceScatterCase(Algorithm::kPipeline, 0, 0));
  RunCase(MatmulReduceScatterCase(Algorithm::kRing, 1, 2));
  RunCase(MatmulReduceScatterCase(Algorithm::kRing, 3, 3));
}

TEST(PlannedTest, MatmulAllReduce) {
  RunCase(MatmulAllReduceCase(Algorithm::kUnfused));
  RunCase(MatmulAllReduceCase(Algorithm::kNccl));
  RunCase(MatmulAllReduceCase(Algorithm::kTiledTwoShot));
}

#ifndef TANDEM_SANITIZED  // much data, and no step that the small ones have not
// Sizes at which unfused takes copy engines: above 8 MiB on the host backend, above 16 MiB on GPUs, where an
// all-reduce goes by NCCL.
TEST(PlannedTest, LargeUnfused) {
  const bool gpus = SharedMachine() != nullptr;
  const int64_t times = gpus ? 2 : 1;
  std::vector<Case> cases = {MatmulReduceScatterCase(Algorithm::kUnfused, 0, 0, 2304 * times, 512)};
  for (bool symmetric : {false, true}) {
    cases.push_back(AllGatherMatmulCase(Algorithm::kUnfused, 0, 0, symmetric, 147456 * times));
    if (!gpus) break;
  }
  if (gpus) cases.push_back(MatmulAllReduceCase(Algorithm::kUnfused, 9216, 512));
  for (Case& test : cases) {
    test.name += " large";
    test.packet_kernels = gpus;
    if (MostRanks() >= 2) RunPlanned(test, 2, gpus ? 0 : 2, 0);
  }
}
#endif

TEST(PlannedTest, Others) {
  RunCase(RootedCase(Op::kBroadcast));
  RunCase(RootedCase(Op::kReduce));
  RunCase(AllToAllCase());
  RunCase(SendReceiveCase());
  for (int64_t chunks : {1, 4}) RunCase(AsyncInputMatmulCase(chunks));
  RunCase(BareCase(Op::kBarrier));
  RunCase(BareCase(Op::kEmpty));
}

}  // namespace
}  // namespace tandem::runtime
