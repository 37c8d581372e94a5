#include "runtime/client_launch_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace tandem::runtime {
namespace {

using S = ClientLaunchState;
using E = ClientLaunchEvent;

constexpr S kStates[] = {S::kRunning, S::kFailing, S::kAwaitingVerdict, S::kStalled, S::kRenewing, S::kOver};
constexpr E kEvents[] = {E::kLaunchFailed,  E::kReported,     E::kVerdict, E::kVerdictLate,
                         E::kLaunchRefused, E::kRenewalBegun, E::kRenewed, E::kRenewalFailed,
                         E::kSessionOver,   E::kContextLost};

// A lifecycle that has come to `state` by transitions of the table, without a failure where there need be
// none.
std::unique_ptr<ClientLaunchLifecycle> Reach(S state) {
  auto lifecycle = std::make_unique<ClientLaunchLifecycle>();
  const auto go = [&](E event, const Status& why = Status::Ok()) {
    EXPECT_TRUE(lifecycle->Apply(event, why)) << ClientLaunchEventName(event);
  };
  switch (state) {
    case S::kRunning: break;
    case S::kFailing: go(E::kLaunchFailed); break;
    case S::kAwaitingVerdict: go(E::kLaunchFailed), go(E::kReported); break;
    case S::kStalled: go(E::kLaunchRefused, OutOfRange("slot 0 is too small")); break;
    case S::kRenewing: go(E::kRenewalBegun); break;
    case S::kOver: go(E::kSessionOver); break;
  }
  EXPECT_EQ(lifecycle->state(), state);
  return lifecycle;
}

TEST(ClientLaunchState, EveryPairOfStateAndEventFollowsTheTableOrChangesNothing) {
  size_t listed = 0;
  for (const S from : kStates) {
    for (const E event : kEvents) {
      const auto lifecycle = Reach(from);
      const uint64_t failures = lifecycle->failures();
      const std::optional<S> next = NextState(kClientLaunchTransitions, from, event);
      const std::string pair =
          std::string(ClientLaunchEventName(event)) + " in " + ClientLaunchStateName(from);
      EXPECT_EQ(lifecycle->Apply(event, event == E::kRenewed ? Status::Ok() : Unavailable("why")),
                next.has_value())
          << pair;
      EXPECT_EQ(lifecycle->state(), next.value_or(from)) << pair;
      if (!next.has_value()) {
        EXPECT_EQ(lifecycle->failures(), failures) << pair;
      }
      listed += next.has_value();
    }
  }
  EXPECT_EQ(listed, kClientLaunchTransitions.size());  // none is listed twice
}

TEST(ClientLaunchState, EveryStateIsReachedAndNothingLeavesTheEnd) {
  std::set<S> reached = {S::kRunning};
  for (const ClientLaunchTransition& transition : kClientLaunchTransitions) {
    reached.insert(transition.to);
    if (transition.from == S::kOver) {
      EXPECT_EQ(transition.to, S::kOver);
    }
  }
  EXPECT_EQ(reached.size(), std::size(kStates));
  for (const S state : kStates) {  // the end comes from everywhere
    EXPECT_EQ(NextState(kClientLaunchTransitions, state, E::kContextLost), S::kOver);
  }
}

TEST(ClientLaunchState, NamesDiffer) {
  std::set<std::string> states, events;
  for (const S state : kStates) states.insert(ClientLaunchStateName(state));
  for (const E event : kEvents) events.insert(ClientLaunchEventName(event));
  EXPECT_EQ(states.size(), std::size(kStates));
  EXPECT_EQ(events.size(), std::size(kEvents));
  EXPECT_FALSE(states.contains("unknown") || events.contains("unknown"));
}

TEST(ClientLaunchState, TheFirstCauseStandsUntilARenewal) {
  const auto lifecycle = Reach(S::kAwaitingVerdict);
  EXPECT_TRUE(lifecycle->failure().ok()) << "the cause is not known yet";
  EXPECT_TRUE(lifecycle->AwaitsVerdict());
  EXPECT_TRUE(lifecycle->Apply(E::kVerdict, DeadlineExceeded("rank 1 had not arrived")));
  EXPECT_FALSE(lifecycle->AwaitsVerdict());
  EXPECT_FALSE(lifecycle->Apply(E::kVerdictLate, DeadlineExceeded("it waited for rank 2")));
  EXPECT_FALSE(lifecycle->Apply(E::kLaunchRefused, OutOfRange("slot 0 is too small")));
  EXPECT_TRUE(lifecycle->Apply(E::kRenewalBegun));
  EXPECT_TRUE(lifecycle->Apply(E::kRenewalFailed, FailedPrecondition("renewing")));
  EXPECT_EQ(lifecycle->failure().message(), "rank 1 had not arrived");
  EXPECT_EQ(lifecycle->failures(), 1u);
  EXPECT_TRUE(lifecycle->Apply(E::kRenewalBegun));
  EXPECT_TRUE(lifecycle->Apply(E::kRenewed));
  EXPECT_TRUE(lifecycle->failure().ok());
  EXPECT_TRUE(lifecycle->Apply(E::kLaunchRefused, OutOfRange("slot 1 is too small")));
  EXPECT_EQ(lifecycle->failure().message(), "slot 1 is too small");
  EXPECT_EQ(lifecycle->failures(), 2u);
}

// Launches that ended well before the session did have not failed.
TEST(ClientLaunchState, TheEndOfTheSessionIsNoFailureOfALaunch) {
  const auto lifecycle = Reach(S::kOver);
  EXPECT_TRUE(lifecycle->failure().ok());
  EXPECT_FALSE(lifecycle->Apply(E::kLaunchFailed));
  EXPECT_TRUE(lifecycle->Apply(E::kVerdict, Unavailable("the daemon is gone")));
  EXPECT_EQ(lifecycle->failure().message(), "the daemon is gone");
}

TEST(ClientLaunchState, ARenewalWaitsForTheCauseOfAFailure) {
  EXPECT_FALSE(Reach(S::kFailing)->Apply(E::kRenewalBegun));
  EXPECT_FALSE(Reach(S::kAwaitingVerdict)->Apply(E::kRenewalBegun));
}

}  // namespace
}  // namespace tandem::runtime
