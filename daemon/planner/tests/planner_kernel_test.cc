// Collectives as kernels of blocks: every (rank, block) is a separate process here, run in random order,
// and the result is compared with the expansion run step by step. So a block that read or wrote another
// block's bytes would be found.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <tuple>

#include "daemon/planner/tests/planner_fixtures.h"
#include "program/kernel_phases.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

constexpr int kLaunches = 2;

// All memory of a group: i32 elements by (space, rank, slot).
class Memory {
 public:
  int32_t& At(const Ref& ref, int64_t element) {
    auto& bytes = areas_[{static_cast<int>(ref.space), ref.rank, ref.slot}];
    const size_t index = ref.offset / 4 + static_cast<size_t>(element);
    if (bytes.size() <= index) bytes.resize(index + 1, -1);
    return bytes[index];
  }
  bool operator==(const Memory&) const = default;
  std::vector<int32_t> Operand(int rank, int slot, size_t count) {
    auto out = areas_[{0, rank, slot}];
    out.resize(count, -1);
    return out;
  }

 private:
  std::map<std::tuple<int, int, int>, std::vector<int32_t>> areas_;
};

// Element `index` of the view, counted with the last dimension fastest.
int64_t Offset(const View& view, int64_t index) {
  int64_t offset = 0;
  for (size_t d = view.extent.size(); d-- > 0;) {
    offset += index % view.extent[d] * view.stride[d];
    index /= view.extent[d];
  }
  return offset;
}

void Run(Memory* memory, const std::vector<View>& sources, const std::vector<View>& destinations,
         int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    int32_t sum = 0;
    for (const View& source : sources) sum += memory->At(source.ref, Offset(source, i));
    for (const View& destination : destinations) memory->At(destination.ref, Offset(destination, i)) = sum;
  }
}

void Fill(Memory* memory, const OperationPlan& plan, int slot, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    Ref ref;
    ref.space = Space::kOperand;
    ref.rank = static_cast<uint8_t>(rank);
    ref.slot = static_cast<uint16_t>(slot);
    for (int64_t i = 0; i < count; ++i) memory->At(ref, i) = static_cast<int32_t>(random() % 100000);
  }
}

const CollectiveStep& Collective(const OperationPlan& plan, size_t rank) {
  return std::get<CollectiveStep>(plan.programs[rank].steps.at(0).work);
}

// The expansions of all ranks in an order that waits allow.
void RunSteps(Memory* memory, const OperationPlan& plan) {
  const size_t world = plan.programs.size();
  std::vector<size_t> next(world);
  std::map<std::tuple<int, int, int>, bool> words;  // reader, writer, index
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < world; ++rank) {
      const auto& steps = Collective(plan, rank).expansion;
      for (; next[rank] < steps.size(); ++next[rank], moved = true) {
        const auto& work = steps[next[rank]].work;
        const int own = static_cast<int>(rank);
        if (const auto* wait = std::get_if<WaitStep>(&work)) {
          if (!words[{own, wait->from_rank, wait->index}]) break;
        } else if (const auto* signal = std::get_if<SignalStep>(&work)) {
          words[{signal->to_rank, own, signal->index}] = true;
        } else if (const auto* copy = std::get_if<CopyStep>(&work)) {
          Run(memory, {copy->src}, {copy->dst}, 0, Elements(copy->src));
        } else if (const auto* reduce = std::get_if<ReduceStep>(&work)) {
          Run(memory, reduce->sources, {reduce->dst}, 0, Elements(reduce->dst));
        }
      }
    }
  }
  for (size_t rank = 0; rank < world; ++rank) {
    ASSERT_EQ(next[rank], Collective(plan, rank).expansion.size()) << "blocked";
  }
}

// The kernels of all ranks, every block a process; random order. `blocks` may be other than planned.
void RunKernels(Memory* memory, const OperationPlan& plan, int blocks, uint32_t seed) {
  struct Process {
    size_t rank = 0;
    int block = 0;
    size_t phase = 0;
    size_t item = 0;  // next item; items + 1: signals
    bool waited = false;
  };
  std::vector<std::vector<KernelPhase>> phases;
  std::vector<Process> processes;
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    phases.push_back(*FusePhases(Collective(plan, rank)));
    for (int block = 0; block < blocks; ++block) processes.push_back({rank, block, 0, 0, false});
  }
  std::map<std::tuple<int, int, int>, bool> words;  // reader, writer, word
  std::mt19937 random(seed);
  auto word = [&](size_t rank, int index, int block) {
    CollectiveStep step;
    step.first_signal = Collective(plan, rank).first_signal;
    step.blocks = static_cast<uint16_t>(blocks);
    return KernelWordIndex(step, index) + block * kKernelWordStride;
  };
  int idle = 0;
  while (!processes.empty() && idle < 100000) {
    const size_t chosen = random() % processes.size();
    Process& process = processes[chosen];
    const KernelPhase& phase = phases[process.rank][process.phase];
    const int own = static_cast<int>(process.rank);
    ++idle;
    if (!process.waited) {
      bool all = true;
      for (const KernelWord& wait : phase.waits) {
        all = all && words[{own, wait.rank, word(process.rank, wait.index, process.block)}];
      }
      if (!all) continue;
      process.waited = true;
    } else if (process.item < phase.items.size()) {
      const KernelItem& item = phase.items[process.item++];
      const int64_t count = Elements(item.sources[0]), granules = (count + 3) / 4;
      Run(memory, item.sources, item.destinations, std::min(count, granules * process.block / blocks * 4),
          std::min(count, granules * (process.block + 1) / blocks * 4));
    } else {
      for (const KernelWord& signal : phase.signals) {
        bool& raised = words[{signal.rank, own, word(process.rank, signal.index, process.block)}];
        EXPECT_FALSE(raised) << "a word is written twice";
        raised = true;
      }
      process = {process.rank, process.block, process.phase + 1, 0, false};
      if (process.phase == phases[process.rank].size()) {
        processes[chosen] = processes.back();
        processes.pop_back();
      }
    }
    idle = 0;
  }
  ASSERT_TRUE(processes.empty()) << "blocked";
}

void Check(const OpRequest& request, const GroupContext& group, int64_t in_count, int64_t out_count,
           const std::string& name) {
  SCOPED_TRACE(name);
  auto plan = PlanOf(request, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_GT(Collective(*plan, 0).blocks, 0) << "no kernel";
  for (size_t rank = 0; rank < plan->programs.size(); ++rank) {
    EXPECT_EQ(Collective(*plan, rank).blocks, Collective(*plan, 0).blocks);
    EXPECT_LE(plan->programs[rank].signal_count, kSignalsPerWriter);
  }
  const int out_slot = request.operands[1].alias_of >= 0 ? request.operands[1].alias_of : 1;
  for (int blocks : {1, 2, 3, 7}) {
    for (uint32_t seed = 0; seed < kLaunches; ++seed) {
      Memory steps, kernels;
      Fill(&steps, *plan, 0, in_count, seed);
      Fill(&kernels, *plan, 0, in_count, seed);
      RunSteps(&steps, *plan);
      RunKernels(&kernels, *plan, blocks, seed + 1);
      if (testing::Test::HasFatalFailure()) return;
      for (int rank = 0; rank < static_cast<int>(plan->programs.size()); ++rank) {
        EXPECT_EQ(kernels.Operand(rank, out_slot, static_cast<size_t>(out_count)),
                  steps.Operand(rank, out_slot, static_cast<size_t>(out_count)))
            << "rank " << rank << " blocks " << blocks;
      }
    }
  }
}

TEST(KernelPhases, BlocksComputeWhatTheStepsDo) {
  for (int world : {2, 3, 4, 8}) {
    for (int64_t count : {int64_t{1}, int64_t{5}, int64_t{61}, int64_t{256}}) {
      for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
        for (bool in_place : {false, true}) {
          for (bool symmetric : {false, true}) {
            OpRequest request = AllReduce(count, DType::kI32);
            request.algorithm = algorithm;
            if (in_place) request.operands[1].alias_of = 0;
            for (Operand& operand : request.operands) operand.symmetric = symmetric;
            Check(request, SwitchGroup(world), count, count,
                  std::string(AlgorithmName(algorithm)) + " W=" + std::to_string(world) +
                      " n=" + std::to_string(count) + (in_place ? " in place" : "") +
                      (symmetric ? " symmetric" : ""));
          }
        }
      }
    }
  }
  OpRequest request = AllReduce(77, DType::kI32);
  request.algorithm = Algorithm::kHybridCubeMesh;
  Check(request, MeshGroup(), 77, 77, "hybrid cube mesh");
}

TEST(KernelPhases, ExchangesAlongAnyDimension) {
  for (int world : {2, 4, 8}) {
    for (Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll, Op::kBroadcast, Op::kReduce}) {
      for (int dim : {0, 1}) {
        for (bool symmetric : {false, true}) {
          std::vector<int64_t> piece = {6, 10}, whole = piece;
          whole[static_cast<size_t>(dim)] *= world;
          const bool gathers = op == Op::kAllGather;
          const bool rooted = op == Op::kBroadcast || op == Op::kReduce;
          OpRequest request = Request(
              op, {Tensor(Role::kInput, DType::kI32, gathers || rooted ? piece : whole),
                   Tensor(Role::kOutput, DType::kI32, op == Op::kReduceScatter || rooted ? piece : whole)});
          request.dim = rooted ? 0 : dim;
          request.algorithm = Algorithm::kSm;
          for (Operand& operand : request.operands) operand.symmetric = symmetric;
          const std::string name =
              std::string(OpName(op)) + " dim " + std::to_string(dim) + " W=" + std::to_string(world);
          Check(request, SwitchGroup(world), 60 * world, 60 * world, name);
          if (op != Op::kAllGather && op != Op::kReduceScatter) continue;
          request.operands[1].alias_of = 0;
          Check(request, SwitchGroup(world), 60 * world, 60 * world, name + " in place");
        }
      }
    }
  }
}

TEST(KernelPhases, HaveNoMoreBlocksThanThereAreSmsForThem) {
  OpRequest request = AllReduce(4 << 20, DType::kI32);
  request.algorithm = Algorithm::kTwoShot;
  GroupContext group = SwitchGroup(4);
  const int wanted = Collective(*PlanOf(request, group), 0).blocks;
  group.kernel_sms = 15;
  ASSERT_GT(wanted, 15);
  EXPECT_EQ(Collective(*PlanOf(request, group), 3).blocks, 15);
  group.kernel_sms = wanted + 1;
  EXPECT_EQ(Collective(*PlanOf(request, group), 0).blocks, wanted);
}

// The output moved onto the input, as no request may ask: along dimension 1 the pieces lie apart in the input
// and together in the output, so a block would overwrite what others have not sent.
TEST(KernelPhases, NoKernelWhereBlocksWouldMeet) {
  OpRequest request = Request(Op::kReduceScatter, {Tensor(Role::kInput, DType::kI32, {6, 40}),
                                                   Tensor(Role::kOutput, DType::kI32, {6, 10})});
  request.dim = 1;
  request.algorithm = Algorithm::kSm;
  auto plan = PlanOf(request, SwitchGroup(4));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_GT(Collective(*plan, 0).blocks, 0);
  for (RankProgram& program : plan->programs) {
    auto& step = std::get<CollectiveStep>(program.steps.at(0).work);
    step.blocks = 0;
    for (Step& part : step.expansion) {
      if (auto* reduce = std::get_if<ReduceStep>(&part.work)) reduce->dst.ref.slot = 0;
    }
  }
  PlanKernels(&plan->programs, 0);
  EXPECT_EQ(Collective(*plan, 0).blocks, 0);
  // And they do meet: the simulation finds it.
  Memory steps, kernels;
  Fill(&steps, *plan, 0, 240, 1);
  Fill(&kernels, *plan, 0, 240, 1);
  RunSteps(&steps, *plan);
  RunKernels(&kernels, *plan, 5, 1);
  bool differ = false;
  for (int rank = 0; rank < 4; ++rank)
    differ = differ || kernels.Operand(rank, 0, 60) != steps.Operand(rank, 0, 60);
  EXPECT_TRUE(differ);
}

TEST(KernelPhases, OneRankWithScatteredElementsTakesTheKernelFromAll) {
  std::vector<OpRequest> requests;
  for (int rank = 0; rank < 4; ++rank) {
    OpRequest request = AllReduce(24, DType::kI32);
    request.algorithm = Algorithm::kOneShot;
    request.operands[0].spec.shape = request.operands[1].spec.shape = {2, 3, 4};
    if (rank == 2) request.operands[0].spec.strides = {60, 20, 2};
    requests.push_back(request);
  }
  auto plan = MakePlan(requests, SwitchGroup(4));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  for (size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(Collective(*plan, rank).blocks, 0);
}

TEST(LowLatency, CarriesSmallContiguousPieces) {
  GroupContext group = SwitchGroup(4);
  group.packet_kernels = true;
  OpRequest request = AllReduce(1024, DType::kI32);
  request.algorithm = Algorithm::kLowLatency;
  auto plan = PlanOf(request, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Collective(*plan, 0).shots, 1);
  EXPECT_GT(Collective(*plan, 0).blocks, 0);
  auto packets = PlanPackets(Collective(*plan, 1), 4);
  ASSERT_TRUE(packets.has_value());
  EXPECT_EQ(packets->exchange, PacketExchange::kSum);

  request = AllReduce(60000, DType::kI32);
  request.algorithm = Algorithm::kLowLatency;
  plan = PlanOf(request, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Collective(*plan, 0).shots, 2);
  packets = PlanPackets(Collective(*plan, 1), 4);
  ASSERT_TRUE(packets.has_value());
  int64_t sum = 0;
  for (int64_t piece : packets->pieces) sum += piece;
  EXPECT_EQ(sum, 60000);

  OpRequest gather = Request(Op::kAllGather, {Tensor(Role::kInput, DType::kI32, {8, 4}),
                                              Tensor(Role::kOutput, DType::kI32, {8, 16})});
  gather.dim = 1;
  gather.algorithm = Algorithm::kLowLatency;
  EXPECT_EQ(PlanOf(gather, group).status().code(), Code::kFailedPrecondition);
  gather.dim = 0;
  gather.operands[1].spec.shape = {32, 4};
  plan = PlanOf(gather, group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_GT(Collective(*plan, 0).blocks, 0);
}

}  // namespace
}  // namespace tandem::plan
