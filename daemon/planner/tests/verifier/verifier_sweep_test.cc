// Every algorithm, world size, shape, dtype, wire type, step count and lane count that the planner can
// produce. Each is planned, verified with and without aliasing lanes, interpreted under random schedules, and
// compared with the fp64 reference.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

// Sanitizers see nothing more in the hundredth case than in the first: they get a sample, another one for
// each world size.
#ifdef TANDEM_SANITIZED
constexpr size_t kEvery = 11;
#else
constexpr size_t kEvery = 1;
#endif

class Sweep : public testing::TestWithParam<int> {};

TEST_P(Sweep, EveryProgramIsProvenAndRight) {
  const int world = GetParam();
  std::map<std::string, int> refused;
  std::map<std::string, int> ran;
  const std::vector<Case> cases = CasesOf(world);
  for (size_t i = static_cast<size_t>(world) % kEvery; i < cases.size(); i += kEvery) {
    const Case& c = cases[i];
    CheckOptions options;
    options.seeds = {1, 2};
    std::string error = CheckRequests(c.requests, c.group, options);
    const std::string key =
        std::string(OpName(c.requests[0].op)) + " " + std::string(AlgorithmName(c.requests[0].algorithm));
    // An algorithm may refuse a request, with its reason; what it accepts must be right.
    if (error.rfind("plan: FAILED_PRECONDITION", 0) == 0) {
      ++refused[key];
      if (refused[key] == 1) std::printf("refused: %s: %.100s\n", c.name.c_str(), error.c_str());
      continue;
    }
    ++ran[key];
    EXPECT_EQ(error, "") << c.name;
  }
  EXPECT_FALSE(ran.empty());
  if (kEvery > 1) return;
  // No algorithm may hide behind refusals: each of every operation must have run.
  for (const auto& [key, count] : refused)
    EXPECT_GT(ran[key], 0) << key << " refused all its " << count << " cases";
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, Sweep, testing::Range(1, 9));

}  // namespace
}  // namespace tandem::plan
