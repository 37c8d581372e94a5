#include "daemon/control/records/group_lifecycle.h"

#include <gmock/gmock.h>

#include <set>
#include <vector>

namespace tandem::daemon {
namespace {

constexpr GroupState kStates[] = {GroupState::kInstalling, GroupState::kDoomed, GroupState::kReady,
                                  GroupState::kSuspended,  GroupState::kAsleep, GroupState::kClosing,
                                  GroupState::kBroken,     GroupState::kEnded};
constexpr GroupEvent kEvents[] = {GroupEvent::kInstalled,  GroupEvent::kEngineEnded, GroupEvent::kRestored,
                                  GroupEvent::kPutToSleep, GroupEvent::kWoken,       GroupEvent::kRankLeft,
                                  GroupEvent::kFailed,     GroupEvent::kEnded};

// A lifecycle that has come to `state` by legal transitions, and the texts of illegal ones.
struct Reached {
  explicit Reached(GroupState state)
      : lifecycle([this](const std::string& text) { illegal.push_back(text); }) {
    const Status why = Unavailable("rank 1 has gone");
    switch (state) {
      case GroupState::kInstalling: break;
      case GroupState::kDoomed: Go(GroupEvent::kRankLeft, why); break;
      case GroupState::kReady: Go(GroupEvent::kInstalled); break;
      case GroupState::kSuspended: Go(GroupEvent::kInstalled), Go(GroupEvent::kEngineEnded); break;
      case GroupState::kAsleep: Go(GroupEvent::kInstalled), Go(GroupEvent::kPutToSleep); break;
      case GroupState::kClosing: Go(GroupEvent::kInstalled), Go(GroupEvent::kRankLeft, why); break;
      case GroupState::kBroken: Go(GroupEvent::kInstalled), Go(GroupEvent::kFailed, why); break;
      case GroupState::kEnded: Go(GroupEvent::kEnded); break;
    }
    EXPECT_EQ(lifecycle.state(), state);
  }
  void Go(GroupEvent event, const Status& why = Status::Ok()) { EXPECT_TRUE(lifecycle.Apply(event, why)); }

  std::vector<std::string> illegal;
  GroupLifecycle lifecycle;
};

TEST(GroupLifecycle, EveryTransitionIsThatOfTheTableOrIllegal) {
  size_t legal = 0;
  for (const GroupState from : kStates) {
    for (const GroupEvent event : kEvents) {
      Reached reached(from);
      const std::optional<GroupState> next = NextGroupState(from, event);
      EXPECT_EQ(reached.lifecycle.Apply(event), next.has_value());
      EXPECT_EQ(reached.lifecycle.state(), next.value_or(from));
      EXPECT_EQ(reached.illegal.size(), next.has_value() ? 0u : 1u);
      legal += next.has_value();
    }
  }
  EXPECT_EQ(legal, kGroupTransitions.size());  // none is listed twice
}

TEST(GroupLifecycle, AnIllegalTransitionIsNamed) {
  Reached reached(GroupState::kBroken);
  EXPECT_FALSE(reached.lifecycle.Apply(GroupEvent::kRestored));
  EXPECT_THAT(reached.illegal,
              testing::ElementsAre("illegal transition: 'restored' of a group that is broken"));
}

TEST(GroupLifecycle, TheFirstCauseStands) {
  Reached reached(GroupState::kReady);
  EXPECT_FALSE(reached.lifecycle.Over());
  reached.Go(GroupEvent::kFailed, Unavailable("rank 1 was lost"));
  reached.Go(GroupEvent::kFailed, Unavailable("rank 2 was lost"));
  reached.Go(GroupEvent::kRankLeft, Unavailable("rank 3 has left"));
  EXPECT_TRUE(reached.lifecycle.Over());
  EXPECT_EQ(reached.lifecycle.why().message(), "rank 1 was lost");
}

TEST(GroupLifecycle, AFailureTakesThePlaceOfALeaving) {
  Reached reached(GroupState::kClosing);
  reached.Go(GroupEvent::kFailed, Unavailable("rank 2 was lost"));
  EXPECT_EQ(reached.lifecycle.why().message(), "rank 2 was lost");
}

TEST(GroupLifecycle, NothingLeavesTheEndAndEveryStateIsReached) {
  std::set<GroupState> reached = {GroupState::kInstalling};
  for (const GroupTransition& transition : kGroupTransitions) {
    EXPECT_NE(transition.from, GroupState::kEnded);
    reached.insert(transition.to);
  }
  EXPECT_EQ(reached.size(), std::size(kStates));
}

}  // namespace
}  // namespace tandem::daemon
