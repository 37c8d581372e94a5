#include "runtime/executor/tests/planned_runner.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "daemon/planner/planner.h"
#include "runtime/executor/tests/group_harness.h"

namespace tandem::runtime {
namespace {

constexpr int kLaunches = 4;

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
    context.fused_kernels = test_.fused_kernels;
    context.packet_kernels = test_.packet_kernels;
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
    memory_.resize(kLaunches);
    device_.resize(kLaunches);
    GroupHarness group(options);
    machine_ = &group.machine();
    std::vector<std::unique_ptr<CompiledProgram>> programs;
    for (int rank = 0; rank < world_size_; ++rank) {
      ProgramLimits limits;
      limits.rank = rank;
      limits.world_size = world_size_;
      limits.workspace_bytes = options.workspace_bytes;
      limits.bulk_bytes = options.bulk_bytes;
      const OpRequest& request = requests_[static_cast<size_t>(rank)];
      for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
        const bool symmetric = request.operands[static_cast<size_t>(slot)].symmetric;
        limits.slots.push_back({static_cast<uint64_t>(*BoundBytes(request, slot)), symmetric});
      }
      auto program = CompiledProgram::Compile(plan->programs[static_cast<size_t>(rank)], limits);
      ASSERT_TRUE(program.ok()) << program.status().ToString() << "\n"
                                << plan::ListProgram(plan->programs[static_cast<size_t>(rank)]);
      programs.push_back(std::move(*program));
      Status prepared = programs.back()->Prepare(group.backend(rank));
      ASSERT_TRUE(prepared.ok()) << prepared.ToString();
    }
    std::vector<Tensors> expected;
    for (int launch = 0; launch < kLaunches; ++launch) expected.push_back(MakeOperands(launch));
    for (int launch = 0; launch < kLaunches; ++launch) {
      LaunchAll(group, programs, launch);
      if (testing::Test::HasFatalFailure()) return;
      // The bulk area has one half only: its next user starts when all ranks have ended.
      if (options.bulk_bytes > 0) {
        ASSERT_TRUE(group.Finish());
      }
    }
    ASSERT_TRUE(group.Finish()) << "blocked; rank 0 runs\n" << plan::ListProgram(plan->programs[0]);
    for (int launch = 0; launch < kLaunches; ++launch) Compare(launch, expected[static_cast<size_t>(launch)]);
  }

 private:
  void LaunchAll(GroupHarness& group, const std::vector<std::unique_ptr<CompiledProgram>>& programs,
                 int launch) {
    std::vector<Status> status(programs.size());
    auto one = [&](size_t rank) {
      status[rank] = group.Launch(static_cast<int>(rank), *programs[rank], static_cast<uint64_t>(launch) + 1,
                                  Addresses(launch, static_cast<int>(rank)));
    };
    if (machine_->launches_in_parallel()) {
      std::vector<std::thread> threads;
      for (size_t rank = 0; rank < programs.size(); ++rank) threads.emplace_back(one, rank);
      for (auto& thread : threads) thread.join();
    } else {
      for (size_t rank = 0; rank < programs.size(); ++rank) one(rank);
    }
    for (const Status& each : status) ASSERT_TRUE(each.ok()) << each.ToString();
  }

  size_t ShiftBytes(const OpRequest& request, size_t slot) const {
    return static_cast<size_t>(test_.shift) * DTypeBytes(request.operands[slot].spec.dtype);
  }

  // The slot whose memory `slot` uses.
  static size_t Home(const OpRequest& request, size_t slot) {
    int alias = request.operands[slot].alias_of;
    return alias >= 0 ? static_cast<size_t>(alias) : slot;
  }

  // From where the slot is bound. In place along a dimension the smaller tensor is the rank's part of the
  // larger one.
  std::vector<int64_t> Elements(size_t rank, size_t slot) const {
    const OpRequest& request = requests_[rank];
    const TensorSpec& spec = request.operands[slot].spec;
    const std::vector<int64_t> strides = StridesOf(request, static_cast<int>(slot));
    const auto dim = static_cast<size_t>(request.dim);
    const bool is_part = PartSlot(request) == static_cast<int>(slot);
    const int64_t first = is_part ? static_cast<int64_t>(rank) * spec.shape[dim] * strides[dim] : 0;
    int64_t count = *ElementCount(spec.shape);
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, offset = first;
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
    auto& device = device_[static_cast<size_t>(launch)];
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      const OpRequest& request = requests_[rank];
      memory.emplace_back();
      device.emplace_back();
      for (size_t slot = 0; slot < request.operands.size(); ++slot) {
        const TensorSpec& spec = request.operands[slot].spec;
        const size_t shift = ShiftBytes(request, slot);
        memory.back().emplace_back(static_cast<size_t>(*BoundBytes(request, static_cast<int>(slot))) + shift +
                                   1);
        device.back().push_back(machine_->Allocate(static_cast<int>(rank), memory.back().back().size()));
        tensors[rank].emplace_back();
        if (Home(request, slot) != slot) {
          tensors[rank][slot] = tensors[rank][Home(request, slot)];
          continue;
        }
        bool words = request.operands[slot].role == Role::kChunkSignals;
        for (int64_t offset : Elements(rank, slot)) {
          double value = words ? 1 : static_cast<double>(random() % 3) - 1;
          tensors[rank][slot].push_back(value);
          StoreFromFloat(memory.back()[slot].data() + shift, spec.dtype, static_cast<size_t>(offset),
                         static_cast<float>(value));
        }
        machine_->Upload(device.back()[slot], static_cast<int>(rank), memory.back()[slot].data(),
                         memory.back()[slot].size());
      }
    }
    test_.compute(world_size_, tensors);
    return tensors;
  }

  std::vector<SlotAddress> Addresses(int launch, int rank) const {
    const auto& memory = device_[static_cast<size_t>(launch)];
    auto viewer = static_cast<size_t>(rank);
    const OpRequest& request = requests_[static_cast<size_t>(rank)];
    std::vector<SlotAddress> slots(request.operands.size());
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      const size_t shift = ShiftBytes(request, Home(request, slot));
      slots[slot].own = memory[viewer][Home(request, slot)].at[viewer] + shift;
      if (!request.operands[slot].symmetric) continue;
      for (size_t peer = 0; peer < memory.size(); ++peer) {
        slots[slot].peer[peer] = memory[peer][Home(requests_[peer], slot)].at[viewer] + shift;
      }
    }
    return slots;
  }

  void Compare(int launch, const Tensors& expected) {
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      for (int slot : test_.output_slots) {
        auto index = static_cast<size_t>(slot);
        if (index >= requests_[rank].operands.size()) continue;
        const TensorSpec& spec = requests_[rank].operands[index].spec;
        size_t home = Home(requests_[rank], index);
        std::vector<uint8_t>& bytes = memory_[static_cast<size_t>(launch)][rank][home];
        machine_->Download(bytes.data(), device_[static_cast<size_t>(launch)][rank][home],
                           static_cast<int>(rank), bytes.size());
        const uint8_t* data = bytes.data() + ShiftBytes(requests_[rank], home);
        std::vector<int64_t> offsets = Elements(rank, index);
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
  TestMachine* machine_ = nullptr;
  // By launch, rank, slot: the test's copy, and the memory that the launch uses.
  std::vector<std::vector<std::vector<std::vector<uint8_t>>>> memory_;
  std::vector<std::vector<std::vector<SharedMemory>>> device_;
};

}  // namespace

void RunPlanned(const Case& test, int world_size, int queues, int delay_us) {
  Runner(test, world_size, queues, delay_us).Run();
}

}  // namespace tandem::runtime
