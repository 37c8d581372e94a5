// Mutations of real programs: the verifier must catch each that can do harm. One that it lets pass must give
// right results under many random schedules, with launches overlapping as far as they may.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using Programs = std::vector<RankProgram>;

struct Tally {
  int caught = 0, passed = 0;
};

// Every list of steps in a program: the program's and its kernels' expansions.
std::vector<std::vector<Step>*> Lists(RankProgram& program) {
  std::vector<std::vector<Step>*> lists = {&program.steps};
  for (Step& step : program.steps) {
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) lists.push_back(&collective->expansion);
  }
  return lists;
}

class Mutations : public testing::Test {
 protected:
  // Programs of one representative case of each operation and algorithm.
  void ForEachProgram(
      int world, const std::function<void(const Case&, const OperationPlan&, const VerifyContext&)>& visit) {
    std::vector<Case> cases = CasesOf(world);
    for (const Case& c : KernelCasesOf(world)) cases.push_back(c);
    for (const Case& c : cases) {
      std::string key =
          std::string(OpName(c.requests[0].op)) + std::string(AlgorithmName(c.requests[0].algorithm));
      // Small or empty requests exchange no bytes; every fifth case is plenty.
      if (c.name.find(" n0") != std::string::npos || c.name.find(" n1 ") != std::string::npos) continue;
      const bool kernel = c.group.fused_kernels;
      if (!kernel && ++seen_[key] % 5 != 2) continue;
      auto plan = MakePlan(c.requests, c.group);
      if (!plan.ok()) continue;
      auto context = ContextOf(c.requests);
      ASSERT_TRUE(context.ok());
      if (!VerifyPrograms(plan->programs, *context).ok()) continue;  // the sweep reports it
      ++programs_;
      kernels_ += kernel ? 1 : 0;
      visit(c, *plan, *context);
    }
  }

  void Judge(const Case& c, const Programs& mutated, const VerifyContext& context, const std::string& what,
             Tally& tally) {
    if (!VerifyPrograms(mutated, context).ok()) {
      ++tally.caught;
      return;
    }
    ++tally.passed;
    CheckOptions options;
    options.seeds = {1, 2, 4, 6, 8, 10};
    EXPECT_EQ(CompareWithReference(mutated, c.requests, options), "")
        << c.name << ": passed although " << what;
  }

  // Applies `change` to a copy of the programs for each step for which `wanted` holds (rank 0 and the last
  // rank).
  template <typename Wanted, typename Change>
  Tally ForEachStep(int world, Wanted wanted, Change change, const std::string& what) {
    Tally tally;
    ForEachProgram(world, [&](const Case& c, const OperationPlan& plan, const VerifyContext& context) {
      for (size_t rank : {size_t{0}, plan.programs.size() - 1}) {
        Programs original = plan.programs;
        const auto lists = Lists(original[rank]);
        for (size_t l = 0; l < lists.size(); ++l) {
          for (size_t s = 0; s < lists[l]->size(); ++s) {
            if (!wanted((*lists[l])[s])) continue;
            Programs mutated = plan.programs;
            change(*Lists(mutated[rank])[l], s);
            Judge(c, mutated, context,
                  what + " at rank " + std::to_string(rank) + " step " + std::to_string(s), tally);
          }
        }
      }
    });
    std::printf("%s, world size %d: %d caught, %d harmless\n", what.c_str(), world, tally.caught,
                tally.passed);
    EXPECT_GT(programs_, 10);
    EXPECT_GT(kernels_, 10);
    return tally;
  }

  std::map<std::string, int> seen_;
  int programs_ = 0, kernels_ = 0;
};

void Drop(std::vector<Step>& steps, size_t s) { steps[s].work = NopStep{}; }
template <typename T>
bool Is(const Step& step) {
  return std::holds_alternative<T>(step.work);
}

TEST_F(Mutations, DroppedWaits) {
  Tally tally = ForEachStep(3, Is<WaitStep>, Drop, "a wait is dropped");
  EXPECT_GT(tally.caught, 50);
}

TEST_F(Mutations, DroppedSignalsAreAllCaught) {
  Tally tally = ForEachStep(3, Is<SignalStep>, Drop, "a signal is dropped");
  EXPECT_GT(tally.caught, 50);
  EXPECT_EQ(tally.passed, 0);
}

TEST_F(Mutations, DuplicatedSignalsAreAllCaught) {
  Tally tally = ForEachStep(
      2, Is<SignalStep>,
      [](std::vector<Step>& steps, size_t s) {
        Step copy = steps[s];
        copy.deps.clear();
        steps.push_back(copy);
      },
      "a signal is sent twice");
  EXPECT_GT(tally.caught, 20);
  EXPECT_EQ(tally.passed, 0);
}

TEST_F(Mutations, SignalsBeforeTheirData) {
  Tally tally;
  for (int world : {2, 3}) {
    ForEachProgram(world, [&](const Case& c, const OperationPlan& plan, const VerifyContext& context) {
      Programs original = plan.programs;
      const auto lists = Lists(original[0]);
      for (size_t l = 0; l < lists.size(); ++l) {
        for (size_t s = 1; s < lists[l]->size(); ++s) {
          const Step &first = (*lists[l])[s - 1], &second = (*lists[l])[s];
          if (!Is<SignalStep>(second) || !Is<CopyStep>(first) || first.lane != second.lane) continue;
          Programs mutated = plan.programs;
          std::swap((*Lists(mutated[0])[l])[s - 1].work, (*Lists(mutated[0])[l])[s].work);
          Judge(c, mutated, context, "signal " + std::to_string(s) + " precedes its copy", tally);
        }
      }
    });
  }
  std::printf("signal before data: %d caught, %d harmless\n", tally.caught, tally.passed);
  EXPECT_GT(tally.caught, 20);
}

TEST_F(Mutations, DroppedDependencies) {
  Tally tally = ForEachStep(
      3, [](const Step& step) { return !step.deps.empty(); },
      [](std::vector<Step>& steps, size_t s) { steps[s].deps.clear(); }, "dependencies are dropped");
  EXPECT_GT(tally.caught, 10);
}

TEST_F(Mutations, MissingWorkspaceAndShortOperandsAreAllCaught) {
  int workspaces = 0, operands = 0;
  ForEachProgram(3, [&](const Case& c, const OperationPlan& plan, const VerifyContext& context) {
    if (plan.workspace_bytes > 0) {
      Programs mutated = plan.programs;
      for (RankProgram& program : mutated) program.workspace_bytes = 0;
      EXPECT_EQ(VerifyPrograms(mutated, context).detail().reason, "BOUNDS") << c.name;
      ++workspaces;
    }
    for (size_t slot = 0; slot < context.operand_bytes[0].size(); ++slot) {
      // Only the root uses both operands of a rooted collective, and a scale of one element may be
      // replicated.
      if (c.requests[0].op == Op::kBroadcast || c.requests[0].op == Op::kReduce) break;
      if (context.operand_bytes[0][slot] == 0 || context.alias[slot] >= 0) continue;
      VerifyContext shorter = context;
      --shorter.operand_bytes[0][slot];
      EXPECT_EQ(VerifyPrograms(plan.programs, shorter).detail().reason, "BOUNDS")
          << c.name << " slot " << slot;
      ++operands;
    }
  });
  EXPECT_GT(workspaces, 10);
  EXPECT_GT(operands, 30);
}

TEST_F(Mutations, WithoutParity) {
  Tally tally;
  for (int world : {2, 3}) {
    ForEachProgram(world, [&](const Case& c, const OperationPlan& plan, const VerifyContext& context) {
      VerifyOptions options;
      options.alternate_parity = false;
      Status status = VerifyPrograms(plan.programs, context, options);
      if (!status.ok()) {
        EXPECT_EQ(status.detail().reason, "RACE");
        ++tally.caught;
        return;
      }
      ++tally.passed;
      CheckOptions check;
      check.seeds = {1, 2, 4, 6, 8, 10};
      EXPECT_EQ(CompareWithReference(plan.programs, c.requests, check, false), "") << c.name;
    });
  }
  std::printf("one half only: %d caught, %d harmless\n", tally.caught, tally.passed);
  EXPECT_GT(tally.caught, 3);
}

}  // namespace
}  // namespace tandem::plan
