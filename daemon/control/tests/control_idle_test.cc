// When the engine of a GPU may rest, and who has it started again.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

class ControlIdleTest : public ControlTest {
 protected:
  static ControlOptions IdleAfter(std::chrono::milliseconds idle) {
    ControlOptions options;
    options.engine_idle = idle;
    return options;
  }
  bool RestsSoon(int gpu) {
    return Eventually([&] { return engines->Rest(gpu); });
  }
  // How often each engine has been asked for.
  std::vector<int> AllWoken() const {
    std::vector<int> all;
    for (int gpu = 0; gpu < engines->count(); ++gpu) all.push_back(engines->Woken(gpu));
    return all;
  }
  // Restarts engines that have been asked for since `served`, as the supervisor does, until `done`.
  void ServeWakes(std::vector<int> served, const std::atomic<bool>& done) {
    while (!done) {
      for (int gpu = 0; gpu < engines->count(); ++gpu) {
        int& seen = served[static_cast<size_t>(gpu)];
        if (engines->Woken(gpu) == seen || engines->Look(gpu).up) continue;
        seen = engines->Woken(gpu);
        engines->Restart(gpu);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // As Join, while engines that are asked for come up.
  uint64_t JoinWaking(const std::vector<SessionRef>& sessions) {
    std::atomic<bool> done = false;
    auto server = std::async(std::launch::async, [&, served = AllWoken()] { ServeWakes(served, done); });
    const uint64_t group = Join(sessions);
    done = true;
    return group;
  }
};

TEST_F(ControlIdleTest, EnginesStayUnlessTheyAreToRest) {
  Start(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(engines->Rest(0));
}

TEST_F(ControlIdleTest, AnEngineRestsOnlyAfterTheTime) {
  Start(1, IdleAfter(std::chrono::hours(1)));
  EXPECT_FALSE(engines->Rest(0));
}

TEST_F(ControlIdleTest, ASessionAloneUsesNone) {
  Start(2, IdleAfter(std::chrono::milliseconds(1)));
  Attach();
  EXPECT_TRUE(RestsSoon(0));
  EXPECT_TRUE(RestsSoon(1));
  EXPECT_EQ(engines->Woken(0), 0);
}

TEST_F(ControlIdleTest, AGroupKeepsTheEnginesOfItsGpusUntilItsSessionsEnd) {
  Start(3, IdleAfter(std::chrono::milliseconds(1)));
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  EXPECT_TRUE(RestsSoon(2));
  EXPECT_FALSE(engines->Rest(0));
  EXPECT_FALSE(engines->Rest(1));
  for (const SessionRef& session : sessions)
    EXPECT_TRUE(control->LeaveGroup(session, group, Waiter::For(kWaitBudget)).ok());
  EXPECT_FALSE(engines->Rest(0)) << "the session may join again";
  EXPECT_TRUE(control->Detach(sessions[0], Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(RestsSoon(0));
  EXPECT_FALSE(engines->Rest(1));
  control->SessionLost(IdOf(1), "its process has ended");
  EXPECT_TRUE(RestsSoon(1));
}

TEST_F(ControlIdleTest, AnEvictedSessionUsesNoneAnyMore) {
  Start(1, IdleAfter(std::chrono::milliseconds(1)));
  const SessionRef session = Attach();
  Join({session});
  EXPECT_TRUE(control->Evict(ids[1000]).ok());
  EXPECT_TRUE(RestsSoon(0));
}

TEST_F(ControlIdleTest, AGroupWaitsForTheEnginesThatItWakes) {
  Start(2, IdleAfter(std::chrono::milliseconds(1)));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(RestsSoon(0) && RestsSoon(1));
    const auto sessions = AttachAll(2);
    EXPECT_NE(JoinWaking(sessions), 0u);
    EXPECT_FALSE(engines->Rest(0));
    for (const SessionRef& session : sessions)
      EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  }
}

TEST_F(ControlIdleTest, ATensorWakesItsEngine) {
  Start(2, IdleAfter(std::chrono::milliseconds(1)));
  ASSERT_TRUE(RestsSoon(1));
  Empty(Attach(), 1);
  EXPECT_EQ(engines->Woken(1), 1);
  EXPECT_EQ(engines->Woken(0), 0);
}

TEST_F(ControlIdleTest, WhereSessionsOutliveTandemdEachKeepsAnEngine) {
  ControlOptions options = IdleAfter(std::chrono::milliseconds(1));
  options.restart_grace = std::chrono::seconds(10);
  Start(2, options);
  ASSERT_TRUE(RestsSoon(0) && RestsSoon(1));
  const SessionRef session = Attach();
  EXPECT_EQ(engines->Woken(0), 1);
  EXPECT_EQ(engines->Woken(1), 0);
  engines->Restart(0);
  EXPECT_FALSE(engines->Rest(0));
  EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(RestsSoon(0));
}

// Sessions come and go while the supervisor asks: whoever joins gets an engine.
TEST_F(ControlIdleTest, NoUseIsLostToAnEngineThatGoes) {
  Start(1, IdleAfter(std::chrono::milliseconds(1)));
  std::atomic<bool> done = false;
  auto server = std::async(std::launch::async, [&, served = AllWoken()] { ServeWakes(served, done); });
  auto resting = std::async(std::launch::async, [&] {
    while (!done) {
      if (engines->Look(0).up) engines->Rest(0);
      std::this_thread::yield();
    }
  });
  for (int round = 0; round < 50; ++round) {
    const SessionRef session = Attach();
    const auto joined = control->JoinGroup(session, JoinRequest(1, 0), Waiter::For(kWaitBudget));
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    EXPECT_TRUE(control->Detach(session, Waiter::For(kWaitBudget)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
  }
  done = true;
}

}  // namespace
}  // namespace tandem::daemon
