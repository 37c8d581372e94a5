// Every algorithm, world size, shape, dtype, wire type, step count and lane count that the planner can produce: planned,
// verified with and without aliasing lanes, interpreted under random schedules, compared with the fp64 reference.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "daemon/planner/tests/reference_cases.h"
#include "daemon/planner/tests/reference_ops.h"

namespace tandem::plan {
namespace {

class Sweep : public testing::TestWithParam<int> {};

TEST_P(Sweep, EveryProgramIsProvenAndRight) {
  const int world = GetParam();
  std::map<std::string, int> refused;
  std::map<std::string, int> ran;
  for (const Case& c : CasesOf(world)) {
    CheckOptions options;
    options.seeds = {1, 2};
    std::string error = CheckRequests(c.requests, c.group, options);
    const std::string key = std::string(OpName(c.requests[0].op)) + " " +
                            std::string(AlgorithmName(c.requests[0].algorithm));
    // An algorithm may refuse a request, with its reason; what it accepts must be right.
    if (error.rfind("plan: FAILED_PRECONDITION", 0) == 0) {
      ++refused[key];
      if (refused[key] == 1) std::printf("refused: %s: %.100s\n", c.name.c_str(), error.c_str());
      continue;
    }
    ++ran[key];
    EXPECT_EQ(error, "") << c.name;
  }
  // No algorithm may hide behind refusals: each of every operation must have run.
  for (const auto& [key, count] : refused) EXPECT_GT(ran[key], 0) << key << " refused all its " << count << " cases";
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Sweep, testing::Range(1, 9));

}  // namespace
}  // namespace tandem::plan
