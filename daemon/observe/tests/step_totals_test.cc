#include "daemon/observe/step_totals.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/observe/chrome_trace.h"

namespace tandem::daemon {
namespace {

TraceRecord Step(uint64_t plan, uint64_t launch, int step, uint64_t start_us, uint64_t us) {
  return {.plan_id = plan,
          .group_id = 1,
          .launch = launch,
          .start_ns = start_us * 1000,
          .end_ns = (start_us + us) * 1000,
          .step = step,
          .lane = step % 2};
}

TraceRecord Launch(uint64_t plan, uint64_t launch, uint64_t start_us, uint64_t us) {
  return {.plan_id = plan,
          .group_id = 1,
          .launch = launch,
          .arrive_ns = start_us * 1000 - 500,
          .start_ns = start_us * 1000,
          .end_ns = (start_us + us) * 1000};
}

const std::vector<std::vector<TraceRecord>> kRecords = {
    {Step(7, 1, 0, 10, 4), Step(7, 1, 1, 12, 8), Launch(7, 1, 10, 10), Step(7, 2, 0, 30, 6),
     Step(7, 2, 1, 36, 2), Launch(7, 2, 30, 8), Launch(7, 3, 50, 8)},
    {Step(7, 1, 0, 10, 20), Launch(7, 1, 10, 20), Step(9, 1, 0, 90, 1), Launch(9, 1, 90, 1)}};

TEST(StepTotalsTest, SumsEachStepOnEachGpu) {
  auto plans = SumSteps(kRecords);
  ASSERT_EQ(plans.size(), 2u);
  const std::vector<StepTotals>& steps = plans[7];
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].gpu, 0);
  EXPECT_EQ(steps[0].step, 0);
  EXPECT_EQ(steps[0].samples, 2u);
  EXPECT_DOUBLE_EQ(steps[0].mean_us, 5);
  EXPECT_DOUBLE_EQ(steps[0].max_us, 6);
  EXPECT_EQ(steps[1].lane, 1);
  EXPECT_DOUBLE_EQ(steps[1].mean_us, 5);
  EXPECT_EQ(steps[2].gpu, 1);
  EXPECT_DOUBLE_EQ(steps[2].mean_us, 20);
}

TEST(ChromeTraceTest, StepsHaveNamesAndRowsByLane) {
  std::map<uint64_t, TracePlan> plans = {{7, {"tp", "all_reduce", "two_shot", {{0, {"push", "sum"}}}}}};
  auto trace = nlohmann::json::parse(
      ChromeTrace(kRecords, std::vector<std::string>{"GPU 0", "GPU 1"}, plans, 0, SIZE_MAX).json);
  int pushes = 0, sums = 0, launches = 0;
  uint64_t push_row = 0, sum_row = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    if (event["name"] == "push") ++pushes, push_row = event["tid"];
    if (event["name"] == "sum") ++sums, sum_row = event["tid"];
    if (event["cat"] == "launch") ++launches;
  }
  EXPECT_EQ(pushes, 2);
  EXPECT_EQ(sums, 2);
  EXPECT_EQ(launches, 3);
  EXPECT_NE(push_row, sum_row);
}

TEST(ChromeTraceTest, TheLastLaunchesComeWithTheirSteps) {
  auto trace = nlohmann::json::parse(
      ChromeTrace(kRecords, std::vector<std::string>{"GPU 0", "GPU 1"}, {}, 2, SIZE_MAX).json);
  int steps = 0, launches = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    steps += event["cat"] == "step";
    launches += event["cat"] == "launch";
  }
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(steps, 2) << "of launch 2 alone: launch 3 was not sampled";
}

}  // namespace
}  // namespace tandem::daemon
