#include "client/jax/host_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "client/jax/tests/fake_library.h"

namespace tandem::jax_calls {
namespace {

using ::testing::HasSubstr;

tandem_plan* PlanAt(int* place) { return reinterpret_cast<tandem_plan*>(place); }

class HostCallsTest : public ::testing::Test {
 protected:
  HostCallsTest() { library_.order = PlanAt(&order_); }

  tandem_jax_host_group Group(int64_t deadline_ms = 60000) {
    return {nullptr, "GPU-0", 1, library_.order, deadline_ms};
  }

  HostCall Call(int number, int64_t site) {
    HostCall call;
    call.name = {7, site};
    call.plan = PlanAt(&plan_);
    call.rows = number;
    call.done = outcomes_.Keep(number);
    return call;
  }

  FakeJaxLibrary library_;
  FakeJaxOutcomes outcomes_;
  int order_ = 0, plan_ = 0;
};

TEST_F(HostCallsTest, RunsCallsInTheOrderOfRankZero) {
  library_.chosen = {{7, 2}, {7, 0}, {7, 1}};
  HostCalls calls(library_.Functions(), Group());
  for (int i = 0; i < 3; ++i) calls.Add(Call(i, i));
  const auto ended = outcomes_.Await(3);
  EXPECT_EQ(ended[0].first, 2);
  EXPECT_EQ(ended[1].first, 0);
  EXPECT_EQ(ended[2].first, 1);
  for (const auto& [call, failure] : ended) EXPECT_EQ(failure.code, TANDEM_OK) << failure.text;
}

TEST_F(HostCallsTest, CopiesOperandsAndResults) {
  library_.run = [](const FakeJaxLaunch& launch) {
    const auto* from = static_cast<const int*>(launch.pointers[0]);
    auto* to = static_cast<int*>(const_cast<void*>(launch.pointers[1]));
    for (int i = 0; i < 4; ++i) to[i] = 10 * from[i];
    return std::string();
  };
  std::array<int, 4> from = {1, 2, 3, 4}, to = {};
  HostCalls calls(library_.Functions(), Group());
  HostCall call = Call(5, 0);
  call.slots = {{from.data(), sizeof(from), false}, {to.data(), sizeof(to), true}};
  calls.Add(std::move(call));
  (void)outcomes_.Await(1);
  EXPECT_EQ(to, (std::array<int, 4>{10, 20, 30, 40}));
  EXPECT_EQ(from, (std::array<int, 4>{1, 2, 3, 4}));
  EXPECT_EQ(library_.launches.at(0).rows, 5);
}

TEST_F(HostCallsTest, AFailureEndsAllLaterCalls) {
  library_.run = [](const FakeJaxLaunch&) { return std::string("rank 0 is gone"); };
  HostCalls calls(library_.Functions(), Group());
  calls.Add(Call(0, 0));
  EXPECT_EQ(outcomes_.Await(1).at(0).second.code, TANDEM_UNAVAILABLE);
  calls.Add(Call(1, 0));
  EXPECT_EQ(outcomes_.Await(2).at(1).second.text, "rank 0 is gone");
  EXPECT_EQ(library_.launches.size(), 1U);
}

TEST_F(HostCallsTest, ACallThatThisRankDoesNotMakeFails) {
  library_.chosen = {{7, 4}};
  HostCalls calls(library_.Functions(), Group(1));
  calls.Add(Call(0, 0));
  const CallFailure failure = outcomes_.Await(1).at(0).second;
  EXPECT_EQ(failure.code, TANDEM_DEADLINE_EXCEEDED);
  EXPECT_THAT(failure.text, HasSubstr("rank 1 has not made"));
}

TEST_F(HostCallsTest, TheEndCancelsCallsThatWait) {
  library_.chosen = {{7, 4}};
  {
    HostCalls calls(library_.Functions(), Group());
    calls.Add(Call(0, 0));
  }
  EXPECT_EQ(outcomes_.Await(1).at(0).second.code, TANDEM_CANCELLED);
}

}  // namespace
}  // namespace tandem::jax_calls
