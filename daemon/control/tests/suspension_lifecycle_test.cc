// The table of suspensions: every pair of state and event.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/control/records/registry.h"
#include "daemon/control/records/suspension.h"

namespace tandem::daemon {
namespace {

using S = SuspensionState;
using E = SuspensionEvent;

constexpr S kSuspensionStates[] = {S::kStopping, S::kUnmapping, S::kAsleep,
                                   S::kMaking,   S::kMapping,   S::kAwake};
constexpr E kSuspensionEvents[] = {E::kAllStopped, E::kAllUnmapped, E::kAllResuming,
                                   E::kMade,       E::kAllMapped,   E::kFailed};

class SuspensionLifecycleTest : public ::testing::Test {
 protected:
  // A suspension that has come to `state` by legal transitions.
  std::unique_ptr<Suspension> Reach(S state) TANDEM_REQUIRES(registry_mutex) {
    illegal.clear();
    auto suspension =
        std::make_unique<Suspension>(2, "g", [this](const std::string& text) { illegal.push_back(text); });
    const std::vector<E> way = {E::kAllStopped, E::kAllUnmapped, E::kAllResuming, E::kMade, E::kAllMapped};
    for (size_t i = 0; i < static_cast<size_t>(state); ++i) EXPECT_TRUE(suspension->Apply(way[i]));
    EXPECT_EQ(suspension->state(), state);
    return suspension;
  }

  Registry registry{ControlLimits()};
  std::vector<std::string> illegal;
};

TEST_F(SuspensionLifecycleTest, EveryTransitionIsThatOfTheTableOrIllegal) {
  RegistryLock lock(registry);
  size_t legal = 0;
  for (const S from : kSuspensionStates) {
    for (const E event : kSuspensionEvents) {
      const auto suspension = Reach(from);
      const auto next = NextState(kSuspensionTransitions, from, event);
      EXPECT_EQ(suspension->Apply(event), next.has_value());
      EXPECT_EQ(suspension->state(), next.value_or(from));
      EXPECT_EQ(illegal.size(), next.has_value() ? 0u : 1u);
      legal += next.has_value();
    }
  }
  EXPECT_EQ(legal, kSuspensionTransitions.size());  // none is listed twice
}

TEST_F(SuspensionLifecycleTest, AnIllegalTransitionIsNamed) {
  RegistryLock lock(registry);
  EXPECT_FALSE(Reach(S::kAwake)->Apply(E::kAllStopped));
  EXPECT_THAT(illegal,
              testing::ElementsAre("illegal transition: 'all stopped' of a suspension that is awake"));
}

TEST_F(SuspensionLifecycleTest, AMeetingThatIsOverMakesPlaceForAnother) {
  RegistryLock lock(registry);
  const auto suspension = Reach(S::kUnmapping);
  const auto first = suspension->Meeting(SuspensionStep::kUnmapped);
  EXPECT_EQ(suspension->Meeting(SuspensionStep::kUnmapped), first);
  EXPECT_NE(suspension->Meeting(SuspensionStep::kResuming), first);
  suspension->EndGathering(Unavailable("rank 1 was lost"));
  EXPECT_EQ(first->verdict().message(), "rank 1 was lost");
  EXPECT_NE(suspension->Meeting(SuspensionStep::kUnmapped), first);
}

}  // namespace
}  // namespace tandem::daemon
