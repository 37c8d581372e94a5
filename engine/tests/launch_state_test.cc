// The table of a launch's states: every pair of a state and an event, and the end of the process by a row
// that does not exist.
#include "engine/launch/launch_state.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace tandem::engine {
namespace {

using S = LaunchState;
using E = LaunchEvent;

const std::vector<S> kStates = {S::kNone, S::kArrived, S::kStarted, S::kFailing};
const std::vector<E> kEvents = {E::kArrive, E::kRefuse, E::kStart, E::kFail, E::kComplete};
const std::map<std::pair<S, E>, S> kTable = {
    {{S::kNone, E::kArrive}, S::kArrived},  {{S::kArrived, E::kStart}, S::kStarted},
    {{S::kArrived, E::kRefuse}, S::kNone},  {{S::kStarted, E::kComplete}, S::kNone},
    {{S::kStarted, E::kFail}, S::kFailing}, {{S::kFailing, E::kComplete}, S::kNone},
};
// How a launch comes to a state.
const std::map<S, std::vector<E>> kPaths = {
    {S::kNone, {}},
    {S::kArrived, {E::kArrive}},
    {S::kStarted, {E::kArrive, E::kStart}},
    {S::kFailing, {E::kArrive, E::kStart, E::kFail}},
};

LaunchProgress At(S state) {
  LaunchProgress progress;
  for (E event : kPaths.at(state)) progress.Advance(event);
  return progress;
}

TEST(LaunchStateTest, OnlyTheRowsOfTheTableExist) {
  for (S from : kStates) {
    for (E event : kEvents) {
      S next = from;
      const auto row = kTable.find({from, event});
      EXPECT_EQ(NextState(from, event, &next), row != kTable.end()) << NameOf(from) << " " << NameOf(event);
      EXPECT_EQ(next, row == kTable.end() ? from : row->second) << NameOf(from) << " " << NameOf(event);
    }
  }
}

TEST(LaunchStateTest, EveryStateIsReachedAndLeft) {
  for (S state : kStates) EXPECT_EQ(At(state).state(), state) << NameOf(state);
  for (const auto& [row, next] : kTable) {
    LaunchProgress progress = At(row.first);
    progress.Advance(row.second);
    EXPECT_EQ(progress.state(), next);
  }
}

TEST(LaunchStateDeathTest, ARowThatDoesNotExistEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  LaunchProgress arrived = At(S::kArrived);
  EXPECT_DEATH(arrived.Advance(E::kArrive), "a launch in state 'arrived' cannot arrive");
  LaunchProgress none;
  EXPECT_DEATH(none.Advance(E::kComplete), "a launch in state 'none' cannot complete");
}

}  // namespace
}  // namespace tandem::engine
