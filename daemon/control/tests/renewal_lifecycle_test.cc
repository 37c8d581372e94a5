// The tables of stalls and renewals: every pair of state and event.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/control/records/registry.h"
#include "daemon/control/records/renewal.h"
#include "daemon/control/records/stall_lifecycle.h"

namespace tandem::daemon {
namespace {

constexpr RenewalState kRenewalStates[] = {RenewalState::kStopping, RenewalState::kRenewingEngines,
                                           RenewalState::kSettingCounters, RenewalState::kRenewed,
                                           RenewalState::kFailed};
constexpr RenewalEvent kRenewalEvents[] = {RenewalEvent::kAllStopped, RenewalEvent::kEnginesRenewed,
                                           RenewalEvent::kAllReady, RenewalEvent::kFailed};
constexpr StallState kStallStates[] = {StallState::kRunning, StallState::kStalled};
constexpr StallEvent kStallEvents[] = {StallEvent::kLaunchFailed, StallEvent::kRenewed,
                                       StallEvent::kEnginesRestarted};

class RenewalLifecycleTest : public ::testing::Test {
 protected:
  // A renewal that has come to `state` by legal transitions.
  std::unique_ptr<Renewal> Reach(RenewalState state) TANDEM_REQUIRES(registry_mutex) {
    illegal.clear();
    auto renewal =
        std::make_unique<Renewal>(2, "g", [this](const std::string& text) { illegal.push_back(text); });
    const std::vector<RenewalEvent> way = {RenewalEvent::kAllStopped, RenewalEvent::kEnginesRenewed,
                                           RenewalEvent::kAllReady};
    const bool fails = state == RenewalState::kFailed;
    for (size_t i = 0; !fails && i < static_cast<size_t>(state); ++i) EXPECT_TRUE(renewal->Apply(way[i]));
    if (fails) {
      EXPECT_TRUE(renewal->Apply(RenewalEvent::kFailed));
    }
    EXPECT_EQ(renewal->state(), state);
    return renewal;
  }

  Registry registry{ControlLimits()};
  std::vector<std::string> illegal;
};

TEST_F(RenewalLifecycleTest, EveryTransitionIsThatOfTheTableOrIllegal) {
  RegistryLock lock(registry);
  size_t legal = 0;
  for (const RenewalState from : kRenewalStates) {
    for (const RenewalEvent event : kRenewalEvents) {
      const auto renewal = Reach(from);
      const auto next = NextState(kRenewalTransitions, from, event);
      EXPECT_EQ(renewal->Apply(event), next.has_value());
      EXPECT_EQ(renewal->state(), next.value_or(from));
      EXPECT_EQ(illegal.size(), next.has_value() ? 0u : 1u);
      legal += next.has_value();
    }
  }
  EXPECT_EQ(legal, kRenewalTransitions.size());  // none is listed twice
}

TEST_F(RenewalLifecycleTest, AnIllegalTransitionIsNamed) {
  RegistryLock lock(registry);
  EXPECT_FALSE(Reach(RenewalState::kRenewed)->Apply(RenewalEvent::kAllStopped));
  EXPECT_THAT(illegal,
              testing::ElementsAre("illegal transition: 'all stopped' of a renewal that is renewed"));
}

TEST_F(RenewalLifecycleTest, TheEndOfTheGroupEndsAMeetingAndNoWorkOfEngines) {
  RegistryLock lock(registry);
  const Status why = Unavailable("rank 1 was lost");
  for (const RenewalState meeting : {RenewalState::kStopping, RenewalState::kSettingCounters}) {
    const auto renewal = Reach(meeting);
    renewal->EndGathering(why);
    EXPECT_EQ(renewal->state(), RenewalState::kFailed);
    EXPECT_FALSE(renewal->UnderWay());
    EXPECT_EQ(renewal->ready.verdict().message(), "rank 1 was lost");
  }
  for (const RenewalState other :
       {RenewalState::kRenewingEngines, RenewalState::kRenewed, RenewalState::kFailed}) {
    const auto renewal = Reach(other);
    renewal->EndGathering(why);
    EXPECT_EQ(renewal->state(), other);
  }
  EXPECT_TRUE(illegal.empty());
}

TEST(StallLifecycle, EveryPairFollowsTheTable) {
  EXPECT_EQ(kStallTransitions.size(), std::size(kStallStates) * std::size(kStallEvents));
  for (const StallState from : kStallStates) {
    for (const StallEvent event : kStallEvents) {
      StallLifecycle stall;
      if (from == StallState::kStalled) stall.Apply(StallEvent::kLaunchFailed, DeadlineExceeded("late"));
      ASSERT_EQ(stall.state(), from);
      const auto next = NextState(kStallTransitions, from, event);
      ASSERT_TRUE(next.has_value()) << StallEventName(event) << " in " << StallStateName(from);
      stall.Apply(event, DeadlineExceeded("later"));
      EXPECT_EQ(stall.state(), *next);
      EXPECT_EQ(stall.why().ok(), !stall.stalled()) << "a reason stands for the stall, and for nothing else";
    }
  }
}

TEST(StallLifecycle, TheFirstReasonStandsUntilARenewal) {
  StallLifecycle stall;
  stall.Apply(StallEvent::kLaunchFailed, DeadlineExceeded("first"));
  stall.Apply(StallEvent::kLaunchFailed, DeadlineExceeded("second"));
  EXPECT_EQ(stall.why().message(), "first");
  stall.Apply(StallEvent::kRenewed);
  stall.Apply(StallEvent::kLaunchFailed, DeadlineExceeded("third"));
  EXPECT_EQ(stall.why().message(), "third");
}

TEST(StallLifecycle, ARestartOfTandemdTakesItOver) {
  StallLifecycle stall;
  stall.TakeOver(DeadlineExceeded("late"));
  EXPECT_TRUE(stall.stalled());
  stall.TakeOver(Status::Ok());
  EXPECT_FALSE(stall.stalled());
}

}  // namespace
}  // namespace tandem::daemon
