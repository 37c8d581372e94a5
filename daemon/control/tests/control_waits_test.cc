// Calls that wait for ranks or engines: each ends by its deadline, its cancellation or somebody's end, and names who is at fault.
#include <gmock/gmock.h>

#include <atomic>

#include "daemon/control/registry.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlWaitsTest : public ControlTest {
 protected:
  // A waiter that ends when `gone` is set.
  static Waiter Until(const std::atomic<bool>& gone) {
    Waiter waiter = Waiter::For(kPatience);
    waiter.cancelled = [&gone] { return gone.load(); };
    return waiter;
  }
  std::future<Status> JoinSoon(const SessionRef& session, int world, int rank, Waiter waiter) {
    return std::async(std::launch::async, [this, session, world, rank, waiter] {
      return control->JoinGroup(session, JoinRequest(world, rank), waiter).status();
    });
  }
  // All ranks have come to a group that is not installed yet.
  bool AwaitInstalling() {
    return Eventually([&] { return control->Snapshot().groups == 1; });
  }
  // `rank` was lost or has left while its group waited for an engine: each call says so.
  void ExpectNamed(std::vector<std::future<Status>> calls, const std::string& rank, const std::string& reason) {
    const auto since = Waiter::Clock::now();
    for (auto& call : calls) {
      const Status told = call.get();
      EXPECT_EQ(told.code(), Code::kUnavailable) << told.ToString();
      EXPECT_EQ(told.detail().reason, reason) << told.ToString();
      EXPECT_EQ(told.detail().who, rank) << told.ToString();
    }
    EXPECT_LT(Waiter::Clock::now() - since, kPatience / 2);
    EXPECT_EQ(control->Snapshot().groups, 0u);
    EXPECT_EQ(control->Snapshot().segment_bytes, 0u);
  }
};

TEST_F(ControlWaitsTest, AJoinThatWaitsForAnEngineEndsByTheFirstDeadline) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(1);
  // Again with more time if rank 1 has come too late for rank 0.
  for (auto time = std::chrono::milliseconds(200);; time *= 2) {
    std::atomic<bool> gone = false;
    auto brief = JoinSoon(sessions[0], 2, 0, Waiter::For(time));
    ASSERT_TRUE(Eventually([&] { return !control->SnapshotGroups().empty(); }));
    auto patient = JoinSoon(sessions[1], 2, 1, Until(gone));
    const Status first = brief.get();
    if (first.detail().reason == "RANK_LATE") {
      gone = true;
      EXPECT_FALSE(patient.get().ok());
      continue;
    }
    const auto since = Waiter::Clock::now();
    for (const Status& told : {first, patient.get()}) {
      EXPECT_EQ(told.code(), Code::kDeadlineExceeded) << told.ToString();
      EXPECT_EQ(told.detail().reason, "ENGINE_DOWN");
      EXPECT_EQ(told.detail().who, "gpu 1");
      EXPECT_THAT(told.message(), HasSubstr("the engine of GPU 1"));
    }
    EXPECT_LT(Waiter::Clock::now() - since, kPatience / 2);
    break;
  }
  EXPECT_EQ(control->Snapshot().groups, 0u);
  engines->Restart(1);
  EXPECT_NE(Join(sessions), 0u);
}

TEST_F(ControlWaitsTest, ARankIsLostWhileItsJoinWaitsForAnEngine) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(0);
  std::vector<std::future<Status>> calls;
  for (int rank = 0; rank < 2; ++rank) {
    calls.push_back(JoinSoon(sessions[static_cast<size_t>(rank)], 2, rank, Waiter::For(kPatience)));
  }
  ASSERT_TRUE(AwaitInstalling());
  control->SessionLost(IdOf(1), "its process has ended");
  ExpectNamed(std::move(calls), "rank 1", "RANK_LOST");
}

TEST_F(ControlWaitsTest, ARankDetachesWhileItsJoinWaitsForAnEngine) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->Kill(0);
  std::vector<std::future<Status>> calls;
  for (int rank = 0; rank < 2; ++rank) {
    calls.push_back(JoinSoon(sessions[static_cast<size_t>(rank)], 2, rank, Waiter::For(kPatience)));
  }
  ASSERT_TRUE(AwaitInstalling());
  ASSERT_TRUE(control->Detach(sessions[0], Waiter::For(kPatience)).ok());
  ExpectNamed(std::move(calls), "rank 0", "RANK_LEFT");
}

}  // namespace
}  // namespace tandem::daemon
