// Pairs of plans of one group, which share its workspace and its signal words: launches that alternate must
// be as safe as launches of one plan.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

struct NamedPlan {
  std::string name;
  OperationPlan plan;
  VerifyContext context;
};

// The first two plans of each operation and algorithm: enough for every way in which workspace and signals
// are used.
std::vector<NamedPlan> NamedPlansOf(int world) {
  std::vector<NamedPlan> plans;
  std::map<std::string, int> taken;
  std::vector<Case> cases = CasesOf(world);
  for (Case& c : KernelCasesOf(world)) cases.push_back(std::move(c));
  for (const Case& c : cases) {
    std::string key =
        std::string(OpName(c.requests[0].op)) + " " + std::string(AlgorithmName(c.requests[0].algorithm));
    if (taken[key] == 2 || c.group.topology.size() != world) continue;
    Result<OperationPlan> plan = MakePlan(c.requests, c.group);
    if (!plan.ok()) continue;  // refused with its reason: the sweep counts these
    Result<VerifyContext> context = ContextOf(c.requests);
    EXPECT_TRUE(context.ok()) << c.name;
    if (!context.ok()) continue;
    ++taken[key];
    plans.push_back({c.name, std::move(*plan), std::move(*context)});
  }
  return plans;
}

class Pairs : public testing::TestWithParam<int> {};

TEST_P(Pairs, EveryTwoPlansMayAlternate) {
  std::vector<NamedPlan> plans = NamedPlansOf(GetParam());
  ASSERT_GT(plans.size(), 20u);
  for (const NamedPlan& p : plans) {
    for (const NamedPlan& q : plans) {
      Status status = VerifyPair(p.plan.programs, p.context, q.plan.programs, q.context);
      ASSERT_TRUE(status.ok()) << p.name << " and " << q.name << ": " << status.ToString();
    }
  }
}

// The test can fail: a plan of which one rank waits for nobody does not close, and the next one may overtake
// it.
TEST(PairsCatch, AProgramThatDoesNotClose) {
  std::vector<NamedPlan> plans = NamedPlansOf(3);
  int caught = 0, mutants = 0;
  for (const NamedPlan& p : plans) {
    if (p.plan.workspace_bytes == 0) continue;
    std::vector<RankProgram> mutant = p.plan.programs;
    bool waits = false, groups = false;
    for (Step& step : mutant[0].steps) {
      groups = groups || std::holds_alternative<TransferGroupStep>(step.work) ||
               std::holds_alternative<NcclStep>(step.work) ||
               std::holds_alternative<CollectiveStep>(step.work);
      if (!std::holds_alternative<WaitStep>(step.work)) continue;
      step.work = NopStep{};
      waits = true;
    }
    if (!waits || groups) continue;  // what a group waits for orders the rank too
    ++mutants;
    if (!VerifyPair(mutant, p.context, p.plan.programs, p.context).ok()) ++caught;
  }
  ASSERT_GT(mutants, 3);
  EXPECT_EQ(caught, mutants);
}

#ifdef TANDEM_SANITIZED  // the time grows with the square of the plans
INSTANTIATE_TEST_SUITE_P(WorldSizes, Pairs, testing::Values(2));
#else
INSTANTIATE_TEST_SUITE_P(WorldSizes, Pairs, testing::Values(2, 3, 4, 8));
#endif

}  // namespace
}  // namespace tandem::plan
