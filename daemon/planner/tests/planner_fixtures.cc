#include "daemon/planner/tests/planner_fixtures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "program/text.h"

namespace tandem::plan {
namespace {

GroupContext EqualGroup(int world) {
  GroupContext group;
  group.topology.source = "test";
  for (int i = 0; i < world; ++i) {
    GpuInfo gpu;
    gpu.uuid = Text("GPU-", i);
    group.topology.gpus.push_back(gpu);
    for (int j = 0; j < world; ++j) {
      group.topology.p2p[i][j] = true;
      group.topology.pcie[i][j] = i == j ? PcieDistance::kSame : PcieDistance::kNode;
    }
  }
  return group;
}

// One rank's serial run.
struct Runner {
  std::vector<Step> steps;
  size_t next = 0;
  int collectives = 0;
  uint32_t knows = 0;  // ranks whose start this rank's next step follows
};

using WordKey = std::tuple<int, int, int>;  // from, to, index

class Simulation {
 public:
  Simulation(const OperationPlan& plan, const std::vector<OpRequest>& requests)
      : plan_(plan), requests_(requests) {
    for (const RankProgram& program : plan.programs) {
      Runner runner;
      runner.steps = ExpandedSteps(program);
      runner.knows = 1u << program.rank;
      runners_.push_back(std::move(runner));
    }
  }

  std::string Run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t rank = 0; rank < runners_.size(); ++rank) {
        while (runners_[rank].next < runners_[rank].steps.size() && Advance(static_cast<int>(rank)))
          moved = true;
        if (!error_.empty()) return error_;
      }
    }
    const uint32_t all = (1u << runners_.size()) - 1;
    // Without a word and without workspace it takes no launch number: the start is the meeting, and there is
    // nothing to close.
    const bool meets =
        std::any_of(plan_.programs.begin(), plan_.programs.end(), [](const RankProgram& program) {
          return program.signal_count > 0 || program.workspace_bytes > 0 || program.bulk_bytes > 0;
        });
    for (size_t rank = 0; rank < runners_.size(); ++rank) {
      const Runner& runner = runners_[rank];
      if (runner.next < runner.steps.size()) {
        return Text("deadlock: rank ", rank, " at ", StepKindName(runner.steps[runner.next]), " ",
                    runner.steps[runner.next].label);
      }
      if (meets && runner.knows != all) return Text("rank ", rank, " does not close: knows ", runner.knows);
    }
    for (const auto& [key, knows] : words_) {
      if (!waited_.contains(key)) return Text("word ", std::get<2>(key), " is never waited for");
    }
    return error_;
  }

 private:
  // Runs the rank's next step; false when it must wait.
  bool Advance(int rank) {
    Runner& runner = runners_[rank];
    const Step& step = runner.steps[runner.next];
    if (const auto* wait = std::get_if<WaitStep>(&step.work)) {
      if (!Receive(wait->from_rank, rank, wait->index)) return false;
    } else if (const auto* signal = std::get_if<SignalStep>(&step.work)) {
      Send(rank, signal->to_rank, signal->index);
    } else if (const auto* group = std::get_if<TransferGroupStep>(&step.work)) {
      // Sends go out once, when the group starts.
      if (started_groups_.insert({rank, runner.next}).second) {
        for (const TransferPart& part : group->parts) {
          if (!part.send) continue;
          Check(rank, part.src, false);
          Check(rank, part.dst, true);
          Send(rank, part.peer, part.index);
        }
      }
      for (const TransferPart& part : group->parts) {
        if (!part.send && !words_.contains({part.peer, rank, part.index})) return false;
      }
      for (const TransferPart& part : group->parts) {
        if (!part.send) Receive(part.peer, rank, part.index);
      }
    } else if (const auto* nccl = std::get_if<NcclStep>(&step.work)) {
      if (nccl->kind != NcclKind::kBarrier) {
        Check(rank, nccl->in, false);
        Check(rank, nccl->out, true);
        if (!IsPacked(nccl->in) || !IsPacked(nccl->out)) Fail("an nccl operand is not contiguous");
      }
      for (size_t other = 0; other < runners_.size(); ++other) {
        const Runner& peer = runners_[other];
        const bool there = peer.collectives > runner.collectives ||
                           (peer.next < peer.steps.size() && peer.collectives == runner.collectives &&
                            std::holds_alternative<NcclStep>(peer.steps[peer.next].work));
        if (!there) return false;
      }
      ++runner.collectives;
      runner.knows = (1u << runners_.size()) - 1;
    } else {
      CheckLocal(rank, step);
    }
    ++runner.next;
    return error_.empty();
  }

  void CheckLocal(int rank, const Step& step) {
    if (const auto* copy = std::get_if<CopyStep>(&step.work)) {
      Check(rank, copy->src, false);
      Check(rank, copy->dst, true);
      if (copy->src.extent != copy->dst.extent || copy->src.dtype != copy->dst.dtype)
        Fail("a copy changes shape");
    } else if (const auto* matmul = std::get_if<MatmulStep>(&step.work)) {
      CheckMatmul(rank, *matmul);
    } else if (const auto* reduce = std::get_if<ReduceStep>(&step.work)) {
      for (const View& source : reduce->sources) {
        Check(rank, source, false);
        if (source.extent != reduce->dst.extent) Fail("a sum of different shapes");
      }
      Check(rank, reduce->dst, true);
      if (reduce->has_bias) Check(rank, reduce->bias, false);
      if (reduce->has_bias && reduce->bias.extent[0] != reduce->dst.extent.back())
        Fail("bias of another length");
    }
  }

  void CheckMatmul(int rank, const MatmulStep& step) {
    Check(rank, step.a, false);
    Check(rank, step.b, false);
    Check(rank, step.c, true);
    std::vector<int64_t> leading(step.a.extent.begin(), step.a.extent.end() - 1);
    if (step.b.extent[0] != step.a.extent.back()) Fail("K of A and B differ");
    std::vector<int64_t> c = leading;
    c.push_back(step.b.extent[1]);
    if (step.c.extent != c) Fail("C's shape does not fit");
    if (step.block_scales) {
      const int64_t blocks = (step.a.extent.back() + kScaleBlock - 1) / kScaleBlock, n = step.b.extent[1];
      auto of_a = leading;
      of_a.push_back(blocks);
      if (!step.has_scale_a || step.scale_a.extent != of_a) Fail("block scale of A does not fit");
      if (!step.has_scale_b || step.scale_b.extent.size() != 2 || step.scale_b.extent[0] != blocks ||
          (step.scale_b.extent[1] != n &&
           step.scale_b.extent[1] != (step.first_column + n + kScaleBlock - 1) / kScaleBlock)) {
        Fail("block scale of B does not fit");
      }
    }
    if (step.has_scale_a) {
      Check(rank, step.scale_a, false);
      if (!step.block_scales && !step.scale_a.extent.empty() && step.scale_a.extent != leading)
        Fail("scale of A does not fit");
    }
    if (step.has_scale_b) {
      Check(rank, step.scale_b, false);
      if (!step.block_scales && !step.scale_b.extent.empty() &&
          step.scale_b.extent != std::vector<int64_t>{step.b.extent[1]}) {
        Fail("scale of B does not fit");
      }
    }
    if (step.has_bias && step.bias.extent != std::vector<int64_t>{step.b.extent[1]})
      Fail("bias does not fit");
  }

  static bool IsPacked(const View& view) {
    std::vector<int64_t> strides = ContiguousStrides(view.extent);
    for (size_t i = 0; i < view.extent.size(); ++i) {
      if (view.extent[i] == 0) return true;
    }
    for (size_t i = 0; i < view.extent.size(); ++i) {
      if (view.extent[i] > 1 && view.stride[i] != strides[i]) return false;
    }
    return true;
  }

  void Check(int rank, const View& view, bool writes) {
    int64_t last = 0;
    for (size_t i = 0; i < view.extent.size(); ++i) {
      if (view.extent[i] == 0) return;
      last += (view.extent[i] - 1) * view.stride[i];
    }
    const uint64_t end = view.ref.offset + static_cast<uint64_t>(last + 1) * DTypeBytes(view.dtype);
    uint64_t bytes = 0;
    switch (view.ref.space) {
      case Space::kWorkspace: bytes = plan_.workspace_bytes; break;
      case Space::kBulk: bytes = plan_.bulk_bytes; break;
      case Space::kOperand: {
        const auto& operands = requests_[view.ref.rank].operands;
        if (view.ref.slot >= operands.size()) return Fail("no such slot");
        bytes = static_cast<uint64_t>(*BoundBytes(requests_[view.ref.rank], view.ref.slot));
        if (view.ref.rank != rank && !operands[view.ref.slot].symmetric)
          Fail("a peer's own operand is touched");
        const Role role = operands[view.ref.slot].role;
        bool output = role == Role::kOutput || role == Role::kC || role == Role::kGatheredA;
        for (const Operand& operand : operands) output |= operand.alias_of == view.ref.slot;
        if (writes && !output) Fail(Text("slot ", view.ref.slot, " is written and is no output"));
        break;
      }
    }
    if (end > bytes) Fail(Text("rank ", rank, " reaches ", end, " of ", bytes, " bytes"));
  }

  void Send(int from, int to, int index) {
    if (!words_.emplace(WordKey{from, to, index}, runners_[from].knows).second)
      Fail("a word is written twice");
    if (index >= plan_.programs[from].signal_count) Fail("a signal index beyond signal_count");
  }
  bool Receive(int from, int to, int index) {
    auto word = words_.find({from, to, index});
    if (word == words_.end()) return false;
    waited_.insert(word->first);
    runners_[to].knows |= word->second;
    return true;
  }
  void Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
  }

  const OperationPlan& plan_;
  const std::vector<OpRequest>& requests_;
  std::vector<Runner> runners_;
  std::map<WordKey, uint32_t> words_;
  std::set<WordKey> waited_;
  std::set<std::pair<int, size_t>> started_groups_;
  std::string error_;
};

}  // namespace

GroupContext SwitchGroup(int world) {
  GroupContext group = EqualGroup(world);
  for (GpuInfo& gpu : group.topology.gpus) gpu.switch_links = 18;
  return group;
}

GroupContext HopperGroup(int world) {
  GroupContext group = SwitchGroup(world);
  group.client_kernels = ClientKernels::kCollectives;
  group.fused_kernels = group.fused_by_choice = group.packet_kernels = true;
  return group;
}

GroupContext MeshGroup() {
  GroupContext group = EqualGroup(8);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const bool linked = i != j && (i / 4 == j / 4 || i % 4 == j % 4);
      group.topology.nvlinks[i][j] = linked ? 1 : 0;
      group.topology.p2p[i][j] = linked || i == j;
    }
  }
  return group;
}

GroupContext PcieGroup(int world) { return EqualGroup(world); }

Operand Tensor(Role role, DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  Operand operand;
  operand.role = role;
  operand.spec = {dtype, std::move(shape), std::move(strides)};
  return operand;
}

OpRequest Request(Op op, std::vector<Operand> operands) {
  OpRequest request;
  request.op = op;
  request.operands = std::move(operands);
  request.on_unfused = OnUnfused::kAllow;  // so that other warnings are a plan's only ones
  return request;
}

OpRequest AllReduce(int64_t count, DType dtype) {
  return Request(Op::kAllReduce,
                 {Tensor(Role::kInput, dtype, {count}), Tensor(Role::kOutput, dtype, {count})});
}

OpRequest GatherMatmul(int world, int64_t m, int64_t n, int64_t k, int dim, DType dtype) {
  const int64_t whole_k = dim == 1 ? k * world : k;
  OpRequest request =
      Request(Op::kAllGatherMatmul, {Tensor(Role::kA, dtype, {m, k}), Tensor(Role::kB, dtype, {whole_k, n}),
                                     Tensor(Role::kC, dtype, {dim == 0 ? m * world : m, n})});
  request.dim = dim;
  return request;
}

OpRequest MatmulScatter(int world, int64_t m, int64_t n, int64_t k, int dim, DType dtype) {
  OpRequest request =
      Request(Op::kMatmulReduceScatter,
              {Tensor(Role::kA, dtype, {m, k}), Tensor(Role::kB, dtype, {k, n}),
               Tensor(Role::kC, dtype, {dim == 0 ? m / world : m, dim == 1 ? n / world : n})});
  request.dim = dim;
  return request;
}

OpRequest MatmulAllReduce(int64_t m, int64_t n, int64_t k, DType dtype) {
  return Request(Op::kMatmulAllReduce, {Tensor(Role::kA, dtype, {m, k}), Tensor(Role::kB, dtype, {k, n}),
                                        Tensor(Role::kC, dtype, {m, n})});
}

std::vector<OpRequest> OnAllRanks(const OpRequest& request, int world) {
  return std::vector<OpRequest>(world, request);
}

Result<OperationPlan> PlanOf(const OpRequest& request, const GroupContext& group) {
  return MakePlan(OnAllRanks(request, group.topology.size()), group);
}

OperationPlan MustPlan(const OpRequest& request, const GroupContext& group) {
  auto plan = PlanOf(request, group);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? *plan : OperationPlan{};
}

std::string ReasonAgainst(const OperationPlan& plan, Algorithm algorithm) {
  for (const RefusedAlgorithm& refused : plan.refused) {
    if (refused.algorithm == algorithm) return refused.reason;
  }
  return "not refused";
}

std::vector<Step> ExpandedSteps(const RankProgram& program) {
  std::vector<Step> steps;
  for (const Step& step : program.steps) {
    if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      steps.insert(steps.end(), collective->expansion.begin(), collective->expansion.end());
    } else {
      steps.push_back(step);
    }
  }
  return steps;
}

std::string Simulate(const OperationPlan& plan, const std::vector<OpRequest>& requests) {
  return Simulation(plan, requests).Run();
}

void ExpectRefused(OpRequest request, const std::function<void(OpRequest*)>& change, const std::string& field,
                   const std::string& text, int world) {
  ASSERT_TRUE(PlanOf(request, SwitchGroup(world)).ok())
      << PlanOf(request, SwitchGroup(world)).status().ToString();
  change(&request);
  const Status status = PlanOf(request, SwitchGroup(world)).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << field << ": " << status.ToString();
  EXPECT_EQ(status.detail().field, field) << status.ToString();
  EXPECT_EQ(status.detail().reason, "INVALID_FIELD");
  EXPECT_THAT(status.message(), testing::HasSubstr(text));
  EXPECT_THAT(status.message(), testing::HasSubstr(field));
}

}  // namespace tandem::plan
