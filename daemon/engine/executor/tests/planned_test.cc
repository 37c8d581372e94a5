// Every operation as the planner plans it, run by W ranks in one process: with and without delayed visibility, with lanes
// aliased onto 1 to 3 queues, several launches in flight back to back. Values are small integers, so that results are
// exact in any order of summation and are compared bit by bit with a plain reference.

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "daemon/engine/executor/tests/group_harness.h"
#include "daemon/planner/planner.h"

namespace tandem::engine {
namespace {

using Values = std::vector<double>;
// By rank, then by slot: the elements in row-major order.
using Tensors = std::vector<std::vector<Values>>;

constexpr int kLaunches = 4;

struct Case {
  std::string name;
  // The request of `rank` in a group of `world_size`.
  std::function<OpRequest(int rank, int world_size)> request;
  // The expected outputs from the inputs: sets the slots that are outputs.
  std::function<void(int world_size, Tensors& tensors)> compute;
  std::vector<int> output_slots;
  std::vector<int> world_sizes = {1, 2, 3, 4, 8};
  bool cube_mesh = false;
};

Topology CubeMesh() {
  Topology topology = EmulatedTopology(8);
  for (int i = 0; i < 8; ++i) {
    topology.gpus[static_cast<size_t>(i)].switch_links = 0;
    topology.gpus[static_cast<size_t>(i)].fabric_state = "none";
    for (int j = 0; j < 8; ++j) {
      bool same_quad = i / 4 == j / 4 && i != j;
      topology.nvlinks[static_cast<size_t>(i)][static_cast<size_t>(j)] = same_quad || i == (j ^ 4) ? 1 : 0;
    }
  }
  return topology;
}

class Runner {
 public:
  Runner(const Case& test, int world_size, int queues, int delay_us)
      : test_(test), world_size_(world_size), queues_(queues), delay_us_(delay_us) {
    label_ = test.name + " W=" + std::to_string(world_size) + " queues=" + std::to_string(queues) +
             " delay=" + std::to_string(delay_us);
  }

  void Run() {
    SCOPED_TRACE(label_);
    for (int rank = 0; rank < world_size_; ++rank) requests_.push_back(test_.request(rank, world_size_));
    plan::GroupContext context;
    context.topology = test_.cube_mesh ? CubeMesh() : EmulatedTopology(world_size_);
    auto plan = plan::MakePlan(requests_, context);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    HarnessOptions options;
    options.world_size = world_size_;
    options.hardware_queues = queues_;
    options.visibility_delay_us = delay_us_;
    for (const auto& program : plan->programs) {
      options.lanes = std::max(options.lanes, program.lanes);
      options.workspace_bytes = std::max(options.workspace_bytes, program.workspace_bytes);
      options.bulk_bytes = std::max(options.bulk_bytes, program.bulk_bytes);
    }
    options.workspace_bytes = (options.workspace_bytes + 255) / 256 * 256;
    // The memory of operands outlives the lanes that use it.
    memory_.resize(kLaunches);
    GroupHarness group(options);
    std::vector<std::unique_ptr<CompiledProgram>> programs;
    for (int rank = 0; rank < world_size_; ++rank) {
      ProgramLimits limits;
      limits.rank = rank;
      limits.world_size = world_size_;
      limits.workspace_bytes = options.workspace_bytes;
      limits.bulk_bytes = options.bulk_bytes;
      for (const Operand& operand : requests_[static_cast<size_t>(rank)].operands) {
        limits.slots.push_back({static_cast<uint64_t>(*SpanBytes(operand.spec)), operand.symmetric});
      }
      auto program = CompiledProgram::Compile(plan->programs[static_cast<size_t>(rank)], limits);
      ASSERT_TRUE(program.ok()) << program.status().ToString() << "\n"
                                << plan::ListProgram(plan->programs[static_cast<size_t>(rank)]);
      programs.push_back(std::move(*program));
    }
    std::vector<Tensors> expected;
    for (int launch = 0; launch < kLaunches; ++launch) {
      expected.push_back(MakeOperands(launch));
      for (int rank = 0; rank < world_size_; ++rank) {
        Status status = group.Launch(rank, *programs[static_cast<size_t>(rank)], static_cast<uint64_t>(launch) + 1,
                                     Addresses(launch, rank));
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      // The bulk area has one half only: its next user starts when all ranks have ended.
      if (options.bulk_bytes > 0) {
        ASSERT_TRUE(group.Finish());
      }
    }
    ASSERT_TRUE(group.Finish()) << "blocked; rank 0 runs\n" << plan::ListProgram(plan->programs[0]);
    for (int launch = 0; launch < kLaunches; ++launch) Compare(launch, expected[static_cast<size_t>(launch)]);
  }

 private:
  // The slot whose memory `slot` uses.
  static size_t Home(const OpRequest& request, size_t slot) {
    int alias = request.operands[slot].alias_of;
    return alias >= 0 ? static_cast<size_t>(alias) : slot;
  }

  static std::vector<int64_t> Elements(const TensorSpec& spec) {
    std::vector<int64_t> strides = spec.strides.empty() ? ContiguousStrides(spec.shape) : spec.strides;
    int64_t count = *ElementCount(spec.shape);
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, offset = 0;
      for (size_t d = spec.shape.size(); d-- > 0;) {
        offset += rest % spec.shape[d] * strides[d];
        rest /= spec.shape[d];
      }
      offsets.push_back(offset);
    }
    return offsets;
  }

  Tensors MakeOperands(int launch) {
    std::mt19937 random(static_cast<uint32_t>(launch + 1));
    Tensors tensors(static_cast<size_t>(world_size_));
    auto& memory = memory_[static_cast<size_t>(launch)];
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      const OpRequest& request = requests_[rank];
      memory.emplace_back();
      for (size_t slot = 0; slot < request.operands.size(); ++slot) {
        const TensorSpec& spec = request.operands[slot].spec;
        memory.back().emplace_back(static_cast<size_t>(*SpanBytes(spec)) + 1);
        tensors[rank].emplace_back();
        if (Home(request, slot) != slot) {
          tensors[rank][slot] = tensors[rank][Home(request, slot)];
          continue;
        }
        bool words = request.operands[slot].role == Role::kChunkSignals;
        for (int64_t offset : Elements(spec)) {
          double value = words ? 1 : static_cast<double>(random() % 3) - 1;
          tensors[rank][slot].push_back(value);
          StoreFromFloat(memory.back()[slot].data(), spec.dtype, static_cast<size_t>(offset),
                         static_cast<float>(value));
        }
      }
    }
    test_.compute(world_size_, tensors);
    return tensors;
  }

  std::vector<SlotAddress> Addresses(int launch, int rank) const {
    const auto& memory = memory_[static_cast<size_t>(launch)];
    const OpRequest& request = requests_[static_cast<size_t>(rank)];
    std::vector<SlotAddress> slots(request.operands.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      slots[slot].own = memory[static_cast<size_t>(rank)][Home(request, slot)].data();
      if (!request.operands[slot].symmetric) continue;
      for (size_t peer = 0; peer < memory.size(); ++peer) {
        slots[slot].peer[peer] = memory[peer][Home(requests_[peer], slot)].data();
      }
    }
    return slots;
  }

  void Compare(int launch, const Tensors& expected) const {
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      for (int slot : test_.output_slots) {
        auto index = static_cast<size_t>(slot);
        if (index >= requests_[rank].operands.size()) continue;
        const TensorSpec& spec = requests_[rank].operands[index].spec;
        const auto* data = memory_[static_cast<size_t>(launch)][rank][Home(requests_[rank], index)].data();
        std::vector<int64_t> offsets = Elements(spec);
        for (size_t i = 0; i < offsets.size(); ++i) {
          ASSERT_EQ(LoadAsFloat(data, spec.dtype, static_cast<size_t>(offsets[i])), expected[rank][index][i])
              << "launch " << launch << " rank " << rank << " slot " << slot << " element " << i;
        }
      }
    }
  }

  const Case& test_;
  int world_size_, queues_, delay_us_;
  std::string label_;
  std::vector<OpRequest> requests_;
  std::vector<std::vector<std::vector<AlignedMemory>>> memory_;  // by launch, rank, slot
};

Operand MakeOperand(Role role, std::vector<int64_t> shape, bool symmetric = false, DType dtype = DType::kF32) {
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

Case AllReduceCase(Algorithm algorithm, int64_t count, bool in_place, bool symmetric, DType dtype = DType::kF32) {
  Case test;
  test.name = "all_reduce " + std::string(AlgorithmName(algorithm)) + " n=" + std::to_string(count) +
              (in_place ? " in place" : "") + (symmetric ? " symmetric" : "") + " " + std::string(DTypeName(dtype));
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

Case AllGatherCase(Algorithm algorithm, bool symmetric) {
  Case test;
  test.name = "all_gather " + std::string(AlgorithmName(algorithm)) + (symmetric ? " symmetric" : "");
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllGather;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kInput, {5, 3}, symmetric),
                        MakeOperand(Role::kOutput, {5 * world_size, 3}, symmetric)};
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

Case ReduceScatterCase(Algorithm algorithm) {
  Case test;
  test.name = "reduce_scatter " + std::string(AlgorithmName(algorithm));
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kReduceScatter;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kInput, {7 * world_size, 3}), MakeOperand(Role::kOutput, {7, 3})};
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

Case AllGatherMatmulCase(Algorithm algorithm, int steps_per_rank, int lanes, bool symmetric) {
  constexpr int64_t kM = 6, kN = 5, kK = 8;
  Case test;
  test.name = "all_gather_matmul " + std::string(AlgorithmName(algorithm)) + " S/W=" +
              std::to_string(steps_per_rank) + " lanes=" + std::to_string(lanes) + (symmetric ? " symmetric" : "");
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kAllGatherMatmul;
    request.algorithm = algorithm;
    request.steps = steps_per_rank * world_size;
    request.lanes = lanes;
    request.operands = {MakeOperand(Role::kA, {kM, kK}, symmetric), MakeOperand(Role::kB, {kK, kN}),
                        MakeOperand(Role::kC, {kM * world_size, kN}),
                        MakeOperand(Role::kGatheredA, {kM * world_size, kK}, symmetric)};
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

Case MatmulReduceScatterCase(Algorithm algorithm, int steps_per_rank, int lanes) {
  constexpr int64_t kM = 6, kN = 5, kK = 8;
  Case test;
  test.name = "matmul_reduce_scatter " + std::string(AlgorithmName(algorithm)) + " S/W=" +
              std::to_string(steps_per_rank) + " lanes=" + std::to_string(lanes);
  test.request = [=](int, int world_size) {
    OpRequest request;
    request.op = Op::kMatmulReduceScatter;
    request.algorithm = algorithm;
    request.steps = steps_per_rank * world_size;
    request.lanes = lanes;
    request.operands = {MakeOperand(Role::kA, {kM * world_size, kK}), MakeOperand(Role::kB, {kK, kN}),
                        MakeOperand(Role::kC, {kM, kN})};
    return request;
  };
  test.compute = [](int world_size, Tensors& tensors) {
    for (auto& rank : tensors) rank[2] = Multiply(rank[0], rank[1], kK, kN);
    Values sum = SumOverRanks(tensors, 2);
    for (size_t r = 0; r < tensors.size(); ++r) tensors[r][2] = Part(sum, r, static_cast<size_t>(world_size));
  };
  test.output_slots = {2};
  return test;
}

Case MatmulAllReduceCase(Algorithm algorithm) {
  constexpr int64_t kM = 13, kN = 5, kK = 8;
  Case test;
  test.name = "matmul_all_reduce " + std::string(AlgorithmName(algorithm));
  test.request = [=](int, int) {
    OpRequest request;
    request.op = Op::kMatmulAllReduce;
    request.algorithm = algorithm;
    request.operands = {MakeOperand(Role::kA, {kM, kK}), MakeOperand(Role::kB, {kK, kN}),
                        MakeOperand(Role::kC, {kM, kN})};
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    for (auto& rank : tensors) rank[2] = Multiply(rank[0], rank[1], kK, kN);
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
    request.operands = {MakeOperand(Role::kInput, {2 * world_size, 3}), MakeOperand(Role::kOutput, {2 * world_size, 3})};
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
    request.transfers = {{true, (rank + 1) % world_size, 0}, {false, (rank + world_size - 1) % world_size, 1}};
    return request;
  };
  test.compute = [](int, Tensors& tensors) {
    for (size_t r = 0; r < tensors.size(); ++r) tensors[r][1] = tensors[(r + tensors.size() - 1) % tensors.size()][0];
  };
  test.output_slots = {1};
  test.world_sizes = {2, 3, 8};
  return test;
}

Case AsyncInputMatmulCase() {
  Case test;
  test.name = "async_input_matmul";
  test.request = [](int, int) {
    OpRequest request;
    request.op = Op::kAsyncInputMatmul;
    request.chunk_pivot = 1;
    request.operands = {MakeOperand(Role::kA, {8, 6}), MakeOperand(Role::kB, {6, 5}), MakeOperand(Role::kC, {8, 5}),
                        MakeOperand(Role::kChunkSignals, {4}, false, DType::kI32)};
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
    for (int queues = 1; queues <= 3; ++queues) {
      Runner(test, world_size, queues, 0).Run();
      if (testing::Test::HasFatalFailure()) return;
    }
    Runner(test, world_size, 2, 100).Run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PlannedTest, AllReduce) {
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kNccl}) {
    for (int64_t count : {0, 1, 1003}) RunCase(AllReduceCase(algorithm, count, false, false));
    RunCase(AllReduceCase(algorithm, 77, true, false));
    RunCase(AllReduceCase(algorithm, 77, false, true));
    RunCase(AllReduceCase(algorithm, 78, true, true, DType::kBf16));
  }
}

TEST(PlannedTest, HybridCubeMeshAllReduce) {
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
  }
}

TEST(PlannedTest, AllGatherMatmul) {
  RunCase(AllGatherMatmulCase(Algorithm::kUnfused, 0, 0, false));
  for (bool symmetric : {false, true}) {
    RunCase(AllGatherMatmulCase(Algorithm::kPipeline, 0, 0, symmetric));
    RunCase(AllGatherMatmulCase(Algorithm::kRing, 2, 3, symmetric));
  }
}

TEST(PlannedTest, MatmulReduceScatter) {
  RunCase(MatmulReduceScatterCase(Algorithm::kUnfused, 0, 0));
  RunCase(MatmulReduceScatterCase(Algorithm::kPipeline, 0, 0));
  RunCase(MatmulReduceScatterCase(Algorithm::kRing, 1, 2));
  RunCase(MatmulReduceScatterCase(Algorithm::kRing, 3, 3));
}

TEST(PlannedTest, MatmulAllReduce) {
  RunCase(MatmulAllReduceCase(Algorithm::kUnfused));
  RunCase(MatmulAllReduceCase(Algorithm::kTiledTwoShot));
}

TEST(PlannedTest, Others) {
  RunCase(RootedCase(Op::kBroadcast));
  RunCase(RootedCase(Op::kReduce));
  RunCase(AllToAllCase());
  RunCase(SendReceiveCase());
  RunCase(AsyncInputMatmulCase());
  RunCase(BareCase(Op::kBarrier));
  RunCase(BareCase(Op::kEmpty));
}

}  // namespace
}  // namespace tandem::engine
