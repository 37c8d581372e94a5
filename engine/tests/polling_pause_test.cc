#include "engine/polling_pause.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

// A machine whose clock moves by what pauses take.
uint64_t clock_ns, yield_takes_ns;
int yields, naps;
uint64_t longest_nap_ns;

constexpr PollingPause::Calls kCalls = {[] { return clock_ns += 50; },
                                        [] {
                                          ++yields;
                                          clock_ns += yield_takes_ns;
                                        },
                                        [](uint64_t ns) {
                                          ++naps;
                                          longest_nap_ns = std::max(longest_nap_ns, ns);
                                          clock_ns += ns;
                                        }};

class PollingPauseTest : public testing::Test {
 protected:
  void SetUp() override {
    clock_ns = 1;
    yield_takes_ns = 300;
    yields = naps = 0;
    longest_nap_ns = 0;
  }
  // Waits for something that happens after `ns`; how late it is noticed.
  uint64_t WaitFor(uint64_t ns) {
    const uint64_t end = clock_ns + ns;
    while (clock_ns < end) pause_.Pause(false), clock_ns += 20;
    pause_.Reset();
    return clock_ns - end;
  }
  PollingPause pause_{kCalls};
};

TEST_F(PollingPauseTest, YieldsForAsLongAsMostProgramsRun) {
  for (uint64_t us : {5, 60, 300, 3000, 9000}) EXPECT_LT(WaitFor(us * 1000), 1000u) << us;
  EXPECT_GT(yields, 1000);  // others may have the CPU
  EXPECT_EQ(naps, 0);
}

// A look takes a hundredth of what it is between two yields, so a wait ends within one: not behind a system
// call.
TEST_F(PollingPauseTest, LooksManyTimesBetweenTwoYields) {
  yield_takes_ns = 3'000;
  WaitFor(1'000'000);
  EXPECT_GT(yields, 50);
  EXPECT_LT(yields, 150);
}

TEST_F(PollingPauseTest, NapsOnceItHasWaitedForLong) {
  const uint64_t late = WaitFor(1'000'000'000);
  EXPECT_LE(late, 51'000u);
  EXPECT_EQ(longest_nap_ns, 50'000u);
  EXPECT_LT(yields, 40'000);
  EXPECT_GT(naps, 10'000);
}

TEST_F(PollingPauseTest, NapsSoonWhereOthersWantTheCpuAndForgetsIt) {
  yield_takes_ns = 100'000;
  WaitFor(3'000'000);
  EXPECT_LE(yields, 3);
  EXPECT_GT(naps, 20);
  yield_takes_ns = 300;
  for (int i = 0; i < 16; ++i) WaitFor(1'000'000);
  naps = 0;
  WaitFor(3'000'000);
  EXPECT_EQ(naps, 0);
}

TEST_F(PollingPauseTest, APatientPauseIsANap) {
  pause_.Pause(true);
  EXPECT_EQ(naps, 1);
  EXPECT_EQ(longest_nap_ns, 50'000u);
}

}  // namespace
}  // namespace tandem::engine
