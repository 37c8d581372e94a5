// Restartable plans: no step writes an input, so that a launch that was cut off can be made again.
#include <gtest/gtest.h>

#include <vector>

#include "daemon/planner/tests/planner_fixtures.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

// Every algorithm, operation and kind of operands: no step of any rank writes an input.
TEST(Restartable, NoAlgorithmWritesItsInput) {
  int in_place = 0, proven = 0;
  for (const int world : {2, 4}) {
    for (const auto& cases : {CasesOf(world), KernelCasesOf(world)}) {
      for (size_t i = 0; i < cases.size(); i += 5) {
        std::vector<OpRequest> requests = cases[i].requests;
        bool aliased = false;
        for (OpRequest& request : requests) {
          request.restartable = true;
          for (const Operand& operand : request.operands) aliased |= operand.alias_of >= 0;
        }
        const Result<OperationPlan> plan = MakePlan(requests, cases[i].group);
        if (aliased) {
          EXPECT_EQ(plan.status().detail().reason, "NOT_RESTARTABLE") << cases[i].name;
          ++in_place;
          continue;
        }
        if (requests[0].low_contention && !plan.ok()) continue;  // not every algorithm can run so
        ASSERT_TRUE(plan.ok()) << cases[i].name << ": " << plan.status().ToString();
        const Status verified = VerifyPrograms(plan->programs, ContextOf(requests).value(), {.launches = 1});
        EXPECT_TRUE(verified.ok()) << cases[i].name << ": " << verified.ToString();
        ++proven;
      }
    }
  }
  EXPECT_GT(in_place, 0);
  EXPECT_GT(proven, 100);
}

TEST(Restartable, AProgramThatWritesItsInputIsFound) {
  OpRequest request = AllReduce(8);
  request.restartable = true;
  const std::vector<OpRequest> requests(4, request);
  const OperationPlan plan = MakePlan(requests, SwitchGroup(4)).value();
  VerifyContext context = ContextOf(requests).value();
  EXPECT_TRUE(VerifyPrograms(plan.programs, context).ok());
  context.read_only = {false, true};  // as if the output were an input
  EXPECT_EQ(VerifyPrograms(plan.programs, context).detail().reason, "INPUT_WRITTEN");
}

}  // namespace
}  // namespace tandem::plan
