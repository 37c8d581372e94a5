#include "client/jax/plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/jax/tests/fake_library.h"

namespace tandem::jax_calls {
namespace {

using ::testing::HasSubstr;

TEST(JaxPlansTest, LaunchesOnTheCudaStream) {
  FakeJaxLibrary library;
  JaxPlans plans;
  plans.Use(library.Functions());
  int place = 0, operand = 0, result = 0;
  auto* const plan = reinterpret_cast<tandem_plan*>(&place);
  ASSERT_TRUE(plans.Add(11, plan, 0));
  EXPECT_EQ(plans.LaunchOnCuda(11, 3, nullptr, {&operand, &result}).code, TANDEM_OK);
  ASSERT_EQ(library.launches.size(), 1U);
  EXPECT_EQ(library.launches[0].plan, plan);
  EXPECT_EQ(library.launches[0].rows, 3);
  EXPECT_EQ(library.launches[0].pointers, (std::vector<const void*>{&operand, &result}));
  EXPECT_EQ(library.holds, 1);
  EXPECT_EQ(plans.launches(), 1U);
  library.run = [](const FakeJaxLaunch&) { return std::string("rank 1 is gone"); };
  EXPECT_EQ(plans.LaunchOnCuda(11, 3, nullptr, {&operand, &result}).text, "rank 1 is gone");
}

TEST(JaxPlansTest, APlanThatIsNotThereFails) {
  FakeJaxLibrary library;
  JaxPlans plans;
  plans.Use(library.Functions());
  int place = 0;
  ASSERT_TRUE(plans.Add(11, reinterpret_cast<tandem_plan*>(&place), 0));
  EXPECT_FALSE(plans.Add(12, reinterpret_cast<tandem_plan*>(&place), 5));
  plans.Remove(11);
  EXPECT_EQ(plans.LaunchOnCuda(11, 3, nullptr, {}).code, TANDEM_FAILED_PRECONDITION);
  FakeJaxOutcomes outcomes;
  HostCall call;
  call.name = {11, 0};
  call.done = outcomes.Keep(0);
  plans.RunOnHost(std::move(call));
  EXPECT_THAT(outcomes.Await(1).at(0).second.text, HasSubstr("trace it again"));
}

TEST(JaxPlansTest, RunsOnTheHostUntilTheGroupIsClosed) {
  FakeJaxLibrary library;
  int order = 0, place = 0;
  library.order = reinterpret_cast<tandem_plan*>(&order);
  JaxPlans plans;
  plans.Use(library.Functions());
  const uint64_t group = plans.OpenHostGroup({nullptr, "GPU-0", 0, library.order, 60000});
  ASSERT_TRUE(plans.Add(11, reinterpret_cast<tandem_plan*>(&place), group));
  FakeJaxOutcomes outcomes;
  const auto run = [&](int number) {
    HostCall call;
    call.name = {11, 0};
    call.done = outcomes.Keep(number);
    plans.RunOnHost(std::move(call));
    return outcomes.Await(static_cast<size_t>(number) + 1).back().second.code;
  };
  EXPECT_EQ(run(0), TANDEM_OK);
  plans.CloseHostGroup(group);
  EXPECT_EQ(run(1), TANDEM_FAILED_PRECONDITION);
}

TEST(JaxPlansTest, CountsPlacesByPlanAndRows) {
  JaxPlans plans;
  EXPECT_EQ(plans.CountSite(1, 8), 0);
  EXPECT_EQ(plans.CountSite(1, 8), 1);
  EXPECT_EQ(plans.CountSite(1, 9), 0);
  EXPECT_EQ(plans.CountSite(2, 8), 0);
}

}  // namespace
}  // namespace tandem::jax_calls
