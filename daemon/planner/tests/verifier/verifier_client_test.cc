// Client placement in the verifier: which of the planner's programs the ranks' own streams can run, which
// need an entry or engines, and that mistakes are found (docs/client-placement.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using Programs = std::vector<RankProgram>;

constexpr VerifyOptions kClient{.client_placed = true};

struct Planned {
  Case from;
  std::string key;  // operation and algorithm
  OperationPlan plan;
  VerifyContext context;
};

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

// "client", or why not: the reason of the proof, or what the form lacks.
std::string Judge(const Programs& programs, const VerifyContext& context) {
  const Status order = VerifyPrograms(programs, context, kClient);
  if (!order.ok()) return order.detail().reason;
  const Status form = CheckOneKernel(programs);
  if (form.ok()) return "client";
  EXPECT_EQ(form.detail().reason, "NOT_ONE_KERNEL");
  return form.message().substr(form.message().rfind(": ") + 2);
}

using Verdicts = std::map<std::string, std::set<std::string>>;

void Collect(const std::vector<Planned>& plans, Verdicts* verdicts) {
  for (const Planned& p : plans) (*verdicts)[p.key].insert(Judge(p.plan.programs, p.context));
}

const char kMeets[] = "meets a peer outside the kernel";
const char kTouches[] = "touches a peer outside the kernel";
const char kHalf[] = "has its data in a half of workspace, outside the kernel";
const char kNoKernel[] = "no kernel can run this collective";

// Only the form keeps a plan with the engines. No plan races, lacks an entry or fails to close without a
// start, unless `expected` says so. `expected` has the operations and algorithms of which plans are for the
// client or need a start.
void ExpectVerdicts(const Verdicts& verdicts, const Verdicts& expected) {
  const std::set<std::string> forms = {kMeets, kTouches, kHalf, kNoKernel};
  for (const auto& [key, reasons] : verdicts) {
    const auto known = expected.find(key);
    if (known != expected.end()) {
      EXPECT_EQ(reasons, known->second) << key;
      continue;
    }
    for (const std::string& reason : reasons) EXPECT_TRUE(forms.contains(reason)) << key << ": " << reason;
  }
  for (const auto& [key, reasons] : expected) EXPECT_TRUE(verdicts.contains(key)) << key;
}

TEST(ClientPlacement, VerdictsOfAllPlans) {
  Verdicts verdicts;
  for (int world : {2, 3, 4, 8}) Collect(PlansOf(world), &verdicts);
  const std::set<std::string> client = {"client"}, mostly = {"client", kNoKernel};
  ExpectVerdicts(verdicts,
                 {{"all_gather low_latency", client},
                  {"all_gather sm", mostly},
                  {"all_gather_matmul fused", {"client", kTouches}},  // few rows; else lane 1 pushes
                  {"all_gather_matmul unfused", {"client", kHalf, kNoKernel}},
                  {"all_reduce hybrid_cube_mesh", mostly},
                  {"all_reduce low_latency", client},
                  {"all_reduce one_shot", mostly},
                  {"all_reduce two_shot", mostly},
                  {"all_to_all sm", mostly},
                  {"barrier direct", {"NOT_CLOSED"}},
                  {"broadcast sm", client},
                  {"empty direct", {"NOT_CLOSED"}},
                  {"matmul_all_reduce fused", client},
                  {"matmul_all_reduce unfused", {"client", kHalf}},
                  {"matmul_reduce_scatter fused", client},
                  {"reduce sm", client},
                  {"reduce_scatter low_latency", client},
                  {"reduce_scatter sm", mostly}});
}

// Large ones enter within their kernel; fused ones of several waves do so on a lane of their own.
TEST(ClientPlacement, VerdictsOfPlansInBulk) {
  Verdicts verdicts;
  for (int world : {2, 3, 4, 8}) Collect(BulkPlansOf(world), &verdicts);
  const std::set<std::string> client = {"client"};
  ExpectVerdicts(verdicts, {{"all_gather sm", client},
                            {"all_reduce hybrid_cube_mesh", client},
                            {"all_reduce one_shot", client},
                            {"all_reduce two_shot", client},
                            {"all_to_all sm", client},
                            {"broadcast sm", client},
                            {"matmul_reduce_scatter fused", {kMeets}},
                            {"matmul_all_reduce fused", {kMeets}},
                            {"reduce sm", client},
                            {"reduce_scatter sm", client}});
}

// Every view of `steps` and of the expansions within them.
void ForEachView(std::vector<Step>& steps, const std::function<void(View&)>& visit) {
  for (Step& step : steps) {
    if (auto* copy = std::get_if<CopyStep>(&step.work)) {
      visit(copy->src);
      visit(copy->dst);
    } else if (auto* reduce = std::get_if<ReduceStep>(&step.work)) {
      for (View& source : reduce->sources) visit(source);
      visit(reduce->dst);
    } else if (auto* matmul = std::get_if<MatmulStep>(&step.work)) {
      for (View* view : {&matmul->a, &matmul->b, &matmul->c, &matmul->scale_a, &matmul->scale_b})
        visit(*view);
    } else if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      visit(collective->in);
      visit(collective->out);
      ForEachView(collective->expansion, visit);
    }
  }
}

// The same programs with their workspace in the bulk area, as fused kernels of client placement have it.
Programs InBulk(Programs programs) {
  for (RankProgram& program : programs) {
    ForEachView(program.steps, [](View& view) {
      if (view.ref.space == Space::kWorkspace) view.ref.space = Space::kBulk;
    });
    program.bulk_bytes += program.workspace_bytes;
    program.workspace_bytes = 0;
  }
  return programs;
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

bool TouchesPeer(const Step& step, int rank) {
  const auto* copy = std::get_if<CopyStep>(&step.work);
  return copy != nullptr && copy->dst.ref.rank != rank;
}

// An entry within the kernel: a word to every peer at its begin, and a wait for theirs before the first
// remote write. False if the programs have no one kernel.
bool AddEntry(Programs* programs) {
  const int world = static_cast<int>(programs->size());
  for (RankProgram& program : *programs) {
    CollectiveStep* kernel = KernelOf(program);
    if (kernel == nullptr) return false;
    const auto index = static_cast<uint16_t>(kernel->first_signal + kernel->signal_count++);
    program.signal_count = std::max<int>(program.signal_count, index + 1);
    std::vector<Step>& steps = kernel->expansion;
    const auto at_peers = [&](size_t at, bool wait) {
      for (int peer = 0; peer < world; ++peer) {
        if (peer == program.rank) continue;
        Step step;
        step.label = wait ? "entry" : "entered";
        if (wait) {
          step.work = WaitStep{static_cast<uint8_t>(peer), index};
        } else {
          step.work = SignalStep{static_cast<uint8_t>(peer), index};
        }
        steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), step);
      }
    };
    const auto first = std::find_if(steps.begin(), steps.end(),
                                    [&](const Step& step) { return TouchesPeer(step, program.rank); });
    at_peers(static_cast<size_t>(first - steps.begin()), true);
    at_peers(0, false);
  }
  return true;
}

// Fused kernels will have everything in the bulk area, whose one copy all launches share: those of one wave,
// which lie in workspace with engines, need an entry.
TEST(ClientPlacement, FusedKernelsInBulkNeedAnEntry) {
  int sums = 0, gathers = 0;
  for (int world : {2, 3, 4, 8}) {
    for (const Planned& p : PlansOf(world)) {
      if (p.plan.algorithm != Algorithm::kFused || p.plan.workspace_bytes == 0) continue;
      Programs bulk = InBulk(p.plan.programs);
      EXPECT_TRUE(VerifyPrograms(bulk, p.context).ok()) << p.from.name << ": an engine gives turns";
      EXPECT_EQ(Judge(bulk, p.context), "NO_ENTRY") << p.from.name;
      if (KernelOf(bulk[0])->skinny) continue;  // keeps its halves
      if (p.plan.op == Op::kAllGatherMatmul) {
        // With a push warp the kernel itself sends the shard: what lane 1 has comes first in the kernel.
        for (RankProgram& program : bulk) {
          std::vector<Step> pushes, kernel;
          for (Step& step : program.steps) {
            (std::holds_alternative<CollectiveStep>(step.work) ? kernel : pushes).push_back(std::move(step));
          }
          ASSERT_EQ(kernel.size(), 1u);
          auto& collective = std::get<CollectiveStep>(kernel[0].work);
          collective.expansion.insert(collective.expansion.begin(), pushes.begin(), pushes.end());
          kernel[0].deps.clear();
          program.steps = std::move(kernel);
        }
        ++gathers;
      } else {
        ++sums;
      }
      EXPECT_EQ(Judge(bulk, p.context), "NO_ENTRY") << p.from.name;
      ASSERT_TRUE(AddEntry(&bulk)) << p.from.name;
      EXPECT_EQ(Judge(bulk, p.context), "client") << p.from.name << "\n" << ListProgram(bulk[0]);
    }
  }
  EXPECT_GT(sums, 4);
  EXPECT_GT(gathers, 4);
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
  return plans;
}

TEST(ClientPlacement, EveryTwoPlansMayAlternate) {
  for (int world : {2, 3, 4}) {
    const std::vector<Planned> plans = ClientPlansOf(world);
    ASSERT_GT(plans.size(), 12u);
    for (const Planned& p : plans) {
      for (const Planned& q : plans) {
        const Status status = VerifyPair(p.plan.programs, p.context, q.plan.programs, q.context, kClient);
        ASSERT_TRUE(status.ok()) << p.from.name << " and " << q.from.name << ": " << status.ToString();
      }
    }
  }
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

bool IsWait(const Step& step) { return std::holds_alternative<WaitStep>(step.work); }

// Each wait for itself. One that may go must give right results under random schedules.
TEST(ClientMutants, DroppedWaits) {
  int caught = 0, harmless = 0;
  for (const Planned& p : ClientPlansOf(3)) {
    for (size_t rank : {size_t{0}, size_t{2}}) {
      Programs original = p.plan.programs;
      const size_t steps = KernelOf(original[rank])->expansion.size();
      for (size_t s = 0; s < steps; ++s) {
        Programs mutant = p.plan.programs;
        Step& step = KernelOf(mutant[rank])->expansion[s];
        if (!IsWait(step)) continue;
        step.work = NopStep{};
        if (!VerifyPrograms(mutant, p.context, kClient).ok()) {
          ++caught;
          continue;
        }
        ++harmless;
        EXPECT_EQ(CompareWithReference(mutant, p.from.requests, {.seeds = {1, 2, 4, 6}}), "")
            << p.from.name << ": passed without the wait of rank " << rank << " step " << s;
      }
    }
  }
  std::printf("dropped waits: %d caught, %d harmless\n", caught, harmless);
  EXPECT_GT(caught, 50);
}

// An engine lets a plan without entry have the bulk area in turn; streams do not.
TEST(ClientMutants, WithoutAnEntry) {
  int mutants = 0, passed_with_engine = 0;
  std::vector<Planned> plans = PlansOf(3);
  for (Planned& p : BulkPlansOf(3)) plans.push_back(std::move(p));
  for (const Planned& p : plans) {
    if (Judge(p.plan.programs, p.context) != "client") continue;
    Programs mutant = p.plan.programs;
    int dropped = 0;
    for (size_t rank = 0; rank < mutant.size(); ++rank) {
      dropped +=
          DropSteps(&mutant, rank, [](const Step& step) { return IsWait(step) && step.label == "entry"; });
    }
    if (dropped == 0) continue;
    ++mutants;
    passed_with_engine += VerifyPrograms(mutant, p.context).ok() ? 1 : 0;
    const Status status = VerifyPrograms(mutant, p.context, kClient);
    EXPECT_FALSE(status.ok()) << p.from.name;
    EXPECT_TRUE(status.detail().reason == "NO_ENTRY" || status.detail().reason == "NOT_CLOSED")
        << p.from.name << ": " << status.ToString();
  }
  std::printf("no entry: %d mutants, %d of them with engines in order\n", mutants, passed_with_engine);
  EXPECT_GT(mutants, 10);
  EXPECT_GT(passed_with_engine, 0);
}

// A launch that counts without having met all peers lets the next one overtake them.
TEST(ClientMutants, CountingWithoutClosing) {
  int mutants = 0;
  const std::vector<Planned> plans = ClientPlansOf(3);
  for (const Planned& p : plans) {
    Programs mutant = p.plan.programs;
    if (DropSteps(&mutant, 0, IsWait) == 0) continue;
    ++mutants;
    EXPECT_FALSE(VerifyPrograms(mutant, p.context, kClient).ok()) << p.from.name;
    EXPECT_FALSE(VerifyPair(plans[0].plan.programs, plans[0].context, mutant, p.context, kClient).ok())
        << p.from.name;
  }
  EXPECT_GT(mutants, 12);
}

TEST(ClientPlacement, AProgramWithoutStepsNeedsAnEngine) {
  Programs empty(2);
  for (int r = 0; r < 2; ++r) {
    empty[r].rank = r;
    empty[r].world_size = 2;
  }
  const VerifyContext context{{{}, {}}, {}, {}, {}};
  EXPECT_TRUE(VerifyPrograms(empty, context).ok());
  EXPECT_EQ(VerifyPrograms(empty, context, kClient).detail().reason, "NOT_CLOSED");
  EXPECT_EQ(VerifyPair(empty, context, empty, context, kClient).detail().reason, "NOT_CLOSED");
  EXPECT_EQ(CheckOneKernel(empty).detail().reason, "NOT_ONE_KERNEL");
}

TEST(ClientPlacement, NamesTheStepThatIsNotLocal) {
  for (const Planned& p : PlansOf(2)) {
    if (p.key != "all_gather copy_engine") continue;
    const Status status = CheckOneKernel(p.plan.programs);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.message(), "rank 0 step 0 (push to 1): touches a peer outside the kernel");
    return;
  }
  FAIL() << "no plan by copy engines";
}

// Rank 0 writes to rank 1's bulk area once rank 1 has entered, and rank 2 reads there. The programs close.
// But rank 1 may end and enter the next launch while rank 2 still reads. An engine's turn keeps that launch
// back.
TEST(ClientPlacement, TheBulkAreaHasNoTurns) {
  const auto bytes = [](Space space, int rank) {
    return View{{space, static_cast<uint8_t>(rank), 0, 0}, DType::kU8, {16}, {1}};
  };
  Programs programs(3);
  for (int r = 0; r < 3; ++r) {
    RankProgram& program = programs[r];
    program.rank = r;
    program.world_size = 3;
    program.bulk_bytes = 16;
    program.signal_count = 2;
    const auto add = [&program](auto work) { program.steps.push_back({0, {}, work, ""}); };
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != r) add(SignalStep{static_cast<uint8_t>(peer), 0});
    }
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != r && (r != 0 || peer == 1)) add(WaitStep{static_cast<uint8_t>(peer), 0});
    }
    if (r == 0) {
      add(CopyStep{bytes(Space::kOperand, 0), bytes(Space::kBulk, 1)});
      add(SignalStep{2, 1});
      add(WaitStep{2, 0});
    }
    if (r == 2) {
      add(WaitStep{0, 1});
      add(CopyStep{bytes(Space::kBulk, 1), bytes(Space::kOperand, 2)});
    }
  }
  const VerifyContext context{{{16}, {16}, {16}}, {false}, {-1}, {}};
  EXPECT_TRUE(VerifyPrograms(programs, context).ok());
  EXPECT_EQ(VerifyPrograms(programs, context, kClient).detail().reason, "RACE");
}

}  // namespace
}  // namespace tandem::plan
