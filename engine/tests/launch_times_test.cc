// When launches began and ended, from events that are all there, partly there, or not at all.
#include "engine/launch/launch_times.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

LaunchObserved Observed(uint64_t started, uint64_t ended) {
  return {.enqueued_ns = 1000, .seen_ns = 9000, .started_ns = started, .ended_ns = ended, .alone = true};
}

TEST(LaunchTimes, EventsSayAllAndTeachTheClock) {
  LaunchLags lags;
  LaunchTimes times = TimesOf(Observed(1400, 8700), &lags);
  EXPECT_EQ(times.start_ns, 1400u);
  EXPECT_EQ(times.end_ns, 8700u);
  times = TimesOf({.enqueued_ns = 11000, .seen_ns = 20000}, &lags);
  EXPECT_EQ(times.start_ns, 11400u);
  EXPECT_EQ(times.end_ns, 19700u);
}

// An event that cannot be read says nothing. The start is known all the same: a lag that was learned when the
// kernels were loaded would put it behind the launch's own steps.
TEST(LaunchTimes, AnEndThatIsNotKnownDoesNotMoveTheStart) {
  LaunchLags lags{.start_ns = 5000, .end_ns = 300, .run_ns = 100};
  const LaunchTimes times = TimesOf(Observed(1400, 0), &lags);
  EXPECT_EQ(times.start_ns, 1400u);
  EXPECT_EQ(times.end_ns, 8700u);
  EXPECT_EQ(lags.start_ns, 400u) << "and it is learned from";
  EXPECT_EQ(lags.end_ns, 300u);
  EXPECT_EQ(lags.run_ns, 100u);
}

TEST(LaunchTimes, NoLaunchBeginsAfterItsFirstStepOrEndsBeforeItsLast) {
  LaunchLags lags{.start_ns = 5000, .end_ns = 3000};
  LaunchObserved observed = Observed(0, 0);
  observed.first_step_ns = 1500;
  observed.last_step_ns = 8600;
  LaunchTimes times = TimesOf(observed, &lags);
  EXPECT_EQ(times.start_ns, 1500u);
  EXPECT_EQ(times.end_ns, 8600u);
  observed.started_ns = 1600;
  observed.ended_ns = 8500;
  times = TimesOf(observed, &lags);
  EXPECT_EQ(times.start_ns, 1500u);
  EXPECT_EQ(times.end_ns, 8600u);
}

TEST(LaunchTimes, AnotherProgramOnTheLanesTeachesNothingOfTheStart) {
  LaunchLags lags{.start_ns = 70};
  LaunchObserved observed = Observed(4000, 8000);
  observed.alone = false;
  EXPECT_EQ(TimesOf(observed, &lags).start_ns, 4000u);
  EXPECT_EQ(lags.start_ns, 70u);
  EXPECT_EQ(lags.end_ns, 1000u);
}

TEST(LaunchTimes, ByTheClockALaunchFollowsTheOneBeforeAndTakesAsLongAsItDid) {
  LaunchLags lags{.start_ns = 400, .end_ns = 7000, .run_ns = 2000};
  const LaunchTimes times = TimesOf({.enqueued_ns = 1000, .seen_ns = 9000, .busy_until_ns = 5000}, &lags);
  EXPECT_EQ(times.start_ns, 5000u);
  EXPECT_EQ(times.end_ns, 7000u);
  LaunchLags none;
  const LaunchTimes late = TimesOf({.enqueued_ns = 1000, .seen_ns = 1001, .busy_until_ns = 5000}, &none);
  EXPECT_LT(late.start_ns, late.end_ns);
  EXPECT_LE(late.end_ns, 1001u);
}

}  // namespace
}  // namespace tandem::engine
