// Client placement in the verifier: which of the planner's programs the ranks' own streams can run, which
// need an entry or engines, and that mistakes are found (docs/client-placement-safety.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/planner/tests/verifier/client_plans.h"

namespace tandem::plan {
namespace {

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
                  {"async_input_matmul direct", {"NOT_CLOSED"}},
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
                            {"matmul_all_reduce fused", {kMeets, "UNAWAITED"}},  // on another lane
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

TEST(ClientPlacement, FusedPlansOfClientsAreProved) {
  std::map<std::string, int> plans;
  for (int world : {2, 3, 4, 8}) {
    for (const Planned& p : FusedPlansOfClients(world)) {
      EXPECT_EQ(Judge(p.plan.programs, p.context), "client") << p.from.name;
      if (world < 8) {
        EXPECT_EQ(CompareWithReference(p.plan.programs, p.from.requests, {.seeds = {1, 2}}), "");
      }
      ++plans[p.key];
    }
  }
  for (const char* key :
       {"all_gather_matmul fused", "matmul_reduce_scatter fused", "matmul_all_reduce fused"}) {
    EXPECT_GT(plans[key], 4) << key;
  }
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
