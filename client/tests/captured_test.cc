// Captured launches on the host backend: what their replays' ends are to the user, and what lives as long as
// a graph.
#include <gtest/gtest.h>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class CapturedTest : public HostClientTest {
 protected:
  struct Captured {
    HostGraphExec exec;
    int slot;
  };
  // A graph of one launch of `plan`, armed.
  Captured Capture(Plan& plan) {
    EXPECT_TRUE(stream_->BeginCapture().ok());
    EXPECT_TRUE(plan.Launch(stream_.get(), {}).ok());
    HostGraphExec exec = stream_->EndCapture().value().Instantiate().value();
    LaunchEntry arm = Arrive(Engine());
    EXPECT_EQ(arm.kind, EntryKind::kArm);
    Engine()->SetArmed(arm.captured_slot, true);
    return {std::move(exec), arm.captured_slot};
  }
  // One replay, which the engine ends so.
  void Replay(Captured& graph, Code code, const char* text = "") {
    ASSERT_TRUE(graph.exec.Launch(*stream_).ok());
    auto deadline = Clock::now() + kLong;
    while (!Engine()->TakeDoorbell(graph.slot) && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_LT(Clock::now(), deadline) << "the doorbell did not ring";
    Engine()->PublishCaptured(graph.slot, ++replays_, Status(code, text), 1, code == Code::kOk ? -1 : 1);
    Engine()->CompleteCaptured(graph.slot);
    ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  }
  bool PlansAreReleased(const std::vector<uint64_t>& plans) {
    std::lock_guard lock(daemon_->mutex);
    return daemon_->released_plans == plans;
  }
  std::shared_ptr<Plan> OtherPlan() {
    return group_->Prepare("other", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  }

  uint64_t replays_ = 0;
};

TEST_F(CapturedTest, AFailedReplayIsToldThoughALaterOneWentWell) {
  Captured graph = Capture(*plan_);
  Replay(graph, Code::kDeadlineExceeded, "rank 1 is late");
  Replay(graph, Code::kOk);
  Status reported = plan_->Wait(kLong);
  EXPECT_EQ(reported.message(), "rank 1 is late") << reported.ToString();
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(CapturedTest, AFailureIsItsOwnPlansAndToldOnce) {
  auto other = OtherPlan();
  Captured graph = Capture(*plan_), others = Capture(*other);
  Replay(graph, Code::kDeadlineExceeded, "rank 1 is late");
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kDeadlineExceeded);
  Replay(others, Code::kUnavailable, "rank 1 is gone");
  EXPECT_TRUE(plan_->Wait(kLong).ok()) << "an old failure again";
  EXPECT_EQ(other->Wait(kLong).code(), Code::kUnavailable);
  Replay(graph, Code::kDeadlineExceeded, "rank 1 is late again");
  EXPECT_EQ(plan_->Wait(kLong).message(), "rank 1 is late again");
}

TEST_F(CapturedTest, AChannelsEndIsToldOnceAndForEachReplayAfterIt) {
  Captured graph = Capture(*plan_);
  Replay(graph, Code::kDeadlineExceeded, "rank 1 is late");
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kDeadlineExceeded);
  Engine()->words().Release(Unavailable("the engine is gone"));
  EXPECT_EQ(plan_->Wait(kLong).message(), "the engine is gone") << "a replay may have been cut off";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(plan_->Wait(kLong).ok()) << "nothing was replayed";
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(graph.exec.Launch(*stream_).ok());
    ASSERT_TRUE(stream_->Synchronize(kLong).ok());
    EXPECT_EQ(plan_->Wait(kLong).message(), "the engine is gone");
  }
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(CapturedTest, ASlotsNextGraphHasNoFailuresOfTheOneBefore) {
  int slot;
  {
    Captured graph = Capture(*plan_);
    slot = graph.slot;
    Replay(graph, Code::kDeadlineExceeded, "rank 1 is late");
  }
  EXPECT_EQ(plan_->Wait(kLong).message(), "rank 1 is late") << "lost with its graph";
  ASSERT_EQ(Arrive(Engine()).kind, EntryKind::kDisarm);
  Engine()->SetArmed(slot, false);
  auto other = OtherPlan();
  Captured graph = Capture(*other);
  ASSERT_EQ(graph.slot, slot);
  Captured again = Capture(*plan_);
  Replay(again, Code::kDeadlineExceeded, "rank 1 is late again");
  EXPECT_TRUE(other->Wait(kLong).ok()) << "the failure of the slot's last graph";
  EXPECT_EQ(plan_->Wait(kLong).message(), "rank 1 is late again");
  Replay(graph, Code::kUnavailable, "rank 1 is gone");
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  EXPECT_EQ(other->Wait(kLong).message(), "rank 1 is gone");
  EXPECT_TRUE(other->Wait(kLong).ok());
}

TEST_F(CapturedTest, AGraphKeepsItsPlan) {
  const uint64_t id = plan_->info().plan_id;
  {
    Captured graph = Capture(*plan_);
    plan_.reset();
    group_.reset();
    client_.reset();
    EXPECT_TRUE(PlansAreReleased({}));
    EXPECT_EQ(daemon_->destroyed, 0);
    for (int i = 0; i < 3; ++i) Replay(graph, Code::kOk);
    EXPECT_TRUE(PlansAreReleased({}));
  }
  auto deadline = Clock::now() + kLong;
  while (daemon_->destroyed == 0 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(daemon_->destroyed, 1) << "the last of them ends everything";
  EXPECT_TRUE(PlansAreReleased({id}));
}

}  // namespace
}  // namespace tandem::client
