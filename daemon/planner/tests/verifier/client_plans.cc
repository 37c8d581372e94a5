#include "daemon/planner/tests/verifier/client_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tandem::plan {
namespace {

std::string KeyOf(const OpRequest& request) {
  return std::string(OpName(request.op)) + " " + std::string(AlgorithmName(request.algorithm));
}

void PlanAll(std::vector<Case> cases, std::vector<Planned>* plans) {
  for (Case& c : cases) {
    Result<OperationPlan> plan = MakePlan(c.requests, c.group);
    if (!plan.ok()) continue;  // refused with its reason: the sweep counts these
    Result<VerifyContext> context = ContextOf(c.requests);
    ASSERT_TRUE(context.ok()) << c.name;
    std::string key = KeyOf(c.requests[0]);
    plans->push_back({std::move(c), std::move(key), std::move(*plan), std::move(*context)});
  }
}

}  // namespace

std::vector<Planned> PlansOf(int world) {
  std::vector<Planned> plans;
  PlanAll(CasesOf(world), &plans);
  PlanAll(KernelCasesOf(world), &plans);
  return plans;
}

// Tensors of 48 MiB, which do not fit into workspace, with and without symmetric outputs.
std::vector<Planned> BulkPlansOf(int world) {
  constexpr int64_t kElements = int64_t{12} << 20;
  std::vector<Case> cases;
  GroupContext group = ReferenceSwitchGroup(world);
  group.fused_kernels = true;
  const auto add = [&](OpRequest request) {
    for (Algorithm algorithm : AlgorithmsOf(request.op)) {
      request.algorithm = algorithm;
      const bool mesh = algorithm == Algorithm::kHybridCubeMesh;
      if (mesh && world != 8) continue;
      cases.push_back({KeyOf(request), std::vector<OpRequest>(static_cast<size_t>(world), request),
                       mesh ? ReferenceMeshGroup() : group});
    }
  };
  for (bool symmetric : {false, true}) {
    for (Op op :
         {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter, Op::kAllToAll, Op::kBroadcast, Op::kReduce}) {
      OpRequest r;
      r.op = op;
      const int64_t in = op == Op::kReduceScatter || op == Op::kAllToAll ? kElements * world : kElements;
      const int64_t out = op == Op::kAllGather || op == Op::kAllToAll ? kElements * world : kElements;
      r.operands = {MakeOperand(Role::kInput, DType::kF32, {in}, symmetric),
                    MakeOperand(Role::kOutput, DType::kF32, {out}, symmetric)};
      add(r);
    }
    for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
      const int64_t rows = 1536 * world, k = 4096, n = 8192;
      const bool gathers = op == Op::kAllGatherMatmul, scatters = op == Op::kMatmulReduceScatter;
      OpRequest r;
      r.op = op;
      r.operands = {MakeOperand(Role::kA, DType::kBf16, {gathers ? 2 * rows : rows, k}),
                    MakeOperand(Role::kB, DType::kBf16, {k, n}),
                    MakeOperand(Role::kC, DType::kF32,
                                {gathers    ? 2 * rows * world
                                 : scatters ? rows / world
                                            : rows,
                                 n},
                                symmetric)};
      add(r);
    }
  }
  std::vector<Planned> plans;
  PlanAll(std::move(cases), &plans);
  return plans;
}

// The fused kernels of many rows as a group that is placed in the client has them.
std::vector<Planned> FusedPlansOfClients(int world) {
  std::vector<Case> cases;
  for (Case& c : KernelCasesOf(world)) {
    if (c.requests[0].algorithm != Algorithm::kFused) continue;
    c.group.placement = PlanPlacement::kClient;
    c.group.client_kernels = ClientKernels::kFused;
    cases.push_back(std::move(c));
  }
  std::vector<Planned> plans, many_rows;
  PlanAll(std::move(cases), &plans);
  for (Planned& p : plans) {
    const std::vector<Step>& steps = p.plan.programs[0].steps;
    const bool fused = std::any_of(steps.begin(), steps.end(), [](const Step& step) {
      const auto* collective = std::get_if<CollectiveStep>(&step.work);
      return collective != nullptr && IsFusedKernel(*collective);
    });
    if (fused) many_rows.push_back(std::move(p));
  }
  return many_rows;
}

// "client", or why not: the reason of the proof, or what the form lacks.
std::string Judge(const Programs& programs, const VerifyContext& context) {
  const Status order = VerifyPrograms(programs, context, kClient);
  if (!order.ok()) return order.detail().reason;
  const Status form = CheckOneKernel(programs);
  if (form.ok()) return "client";
  EXPECT_EQ(form.detail().reason, "NOT_ONE_KERNEL");
  return form.message().substr(form.message().rfind(": ") + 2);
}

CollectiveStep* KernelOf(RankProgram& program) {
  CollectiveStep* kernel = nullptr;
  for (Step& step : program.steps) {
    auto* collective = std::get_if<CollectiveStep>(&step.work);
    if (collective == nullptr) continue;
    if (kernel != nullptr) return nullptr;
    kernel = collective;
  }
  return kernel;
}

// The client's plans of a world size, one or two of each kind that exchanges bytes.
std::vector<Planned> ClientPlansOf(int world) {
  std::vector<Planned> all = PlansOf(world), plans;
  std::map<std::string, int> taken;
  for (Planned& p : all) {
    if (p.plan.bytes_moved == 0 || Judge(p.plan.programs, p.context) != "client") continue;
    const std::string key = p.key + (p.context.symmetric[p.context.symmetric.size() - 1] ? " symmetric" : "");
    if (++taken[key] <= 2) plans.push_back(std::move(p));
  }
  taken.clear();
  for (Planned& p : FusedPlansOfClients(world)) {
    if (++taken[p.key] <= 2) plans.push_back(std::move(p));
  }
  return plans;
}

// Drops steps of rank `rank`'s kernel for which `wanted` holds; returns how many.
int DropSteps(Programs* programs, size_t rank, const std::function<bool(const Step&)>& wanted) {
  int dropped = 0;
  for (Step& step : KernelOf((*programs)[rank])->expansion) {
    if (!wanted(step)) continue;
    step.work = NopStep{};
    ++dropped;
  }
  return dropped;
}

}  // namespace tandem::plan
