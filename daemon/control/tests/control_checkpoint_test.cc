// Sessions that outlive their processes, in the control plane (docs/suspend.md): who may have them, and how often.
#include <gmock/gmock.h>

#include <utility>

#include "daemon/control/records/session_record.h"
#include "daemon/control/tests/client_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::SizeIs;

class CheckpointTest : public ClientPlacementTest {
 protected:
  // Two ranks whose group sleeps; rank 0 has a secret.
  void BeginAsleep(const ControlOptions& options = {}) {
    Begin(options);
    PlanAll("ar");
    Sleep();
    Result<v1::BeginCheckpointReply> begun = control->BeginCheckpoint(sessions[0]);
    ASSERT_TRUE(begun.ok()) << begun.status().ToString();
    secret = begun->secret();
    EXPECT_THAT(secret, SizeIs(32));
    token.assign(sessions[0]->token.begin(), sessions[0]->token.end());
  }
  void StepAll(v1::SuspendGroupRequest::Step step) {
    const auto stepped = Together(kWorld, [&](int rank) {
      v1::SuspendGroupRequest request;
      request.set_group_id(group);
      request.set_step(step);
      return control->SuspendGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget))
          .status();
    });
    for (const Status& status : stepped) ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void Sleep() {
    StepAll(v1::SuspendGroupRequest::STOPPED);
    StepAll(v1::SuspendGroupRequest::UNMAPPED);
  }
  Status LetGo() { return control->LetGo(sessions[0]->id, secret); }
  Result<v1::AttachReply> Restore(const PeerIdentity& peer, const std::string& shown) {
    v1::RestoreRequest request;
    request.set_session_id(sessions[0]->id);
    request.set_token(token);
    request.set_secret(shown);
    return control->Restore(peer, request);
  }
  std::string ReasonOf(const PeerIdentity& peer, const std::string& shown) {
    const Status status = Restore(peer, shown).status();
    return status.ok() ? "OK" : status.detail().reason;
  }

  const PeerIdentity restored_process = {.uid = 7, .gid = 7, .pid = 5000, .start_ticks = 50};
  std::string secret, token;
};

TEST_F(CheckpointTest, AnotherProcessTakesTheSessionUnderANewToken) {
  BeginAsleep();
  ASSERT_TRUE(LetGo().ok());
  EXPECT_EQ(control->Authenticate(token).status().detail().reason, "CHECKPOINTED");
  EXPECT_GT(control->SnapshotSessions().at(0).checkpointed_seconds, 0);
  const Result<v1::AttachReply> restored = Restore(restored_process, secret);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(restored->session_id(), sessions[0]->id);
  EXPECT_NE(restored->token(), token);
  EXPECT_EQ(control->Authenticate(token).status().detail().reason, "SESSION_LOST");
  ASSERT_TRUE(control->Authenticate(restored->token()).ok());
  EXPECT_EQ(control->SnapshotSessions().at(0).pid, restored_process.pid);
  EXPECT_EQ(control->SnapshotGroups().at(0).members.at(0).pid, restored_process.pid);
  StepAll(v1::SuspendGroupRequest::RESUMING);
  StepAll(v1::SuspendGroupRequest::MAPPED);
}

TEST_F(CheckpointTest, NobodyElseGetsItAndNothingIsLost) {
  BeginAsleep();
  EXPECT_EQ(ReasonOf(restored_process, secret), "NOT_CHECKPOINTED");
  ASSERT_TRUE(LetGo().ok());
  PeerIdentity other_user = restored_process;
  other_user.uid = 8;
  EXPECT_EQ(ReasonOf(other_user, secret), "OTHER_USER");
  std::string wrong = secret;
  wrong.back() ^= 1;
  for (const std::string& shown : {wrong, secret.substr(1), std::string()})
    EXPECT_EQ(ReasonOf(restored_process, shown), "WRONG_SECRET");
  const std::string own = std::exchange(token, std::string(kTokenBytes, 'x'));
  EXPECT_EQ(ReasonOf(restored_process, secret), "SESSION_LOST");
  token = own;
  EXPECT_EQ(ReasonOf(restored_process, secret), "OK");
}

TEST_F(CheckpointTest, ASecretServesOneProcess) {
  BeginAsleep();
  ASSERT_TRUE(LetGo().ok());
  const Result<v1::AttachReply> restored = Restore(restored_process, secret);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  // Its answer was lost.
  const Result<v1::AttachReply> again = Restore(restored_process, secret);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->token(), restored->token());
  PeerIdentity second = restored_process;
  second.start_ticks = 51;
  EXPECT_EQ(ReasonOf(second, secret), "RESTORED");
  second.pid = 5001;
  EXPECT_EQ(ReasonOf(second, secret), "RESTORED");
  // The next checkpoint has another secret, and the session's own token.
  const Result<v1::BeginCheckpointReply> next = control->BeginCheckpoint(sessions[0]);
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next->secret(), secret);
  EXPECT_EQ(ReasonOf(second, next->secret()), "SESSION_LOST");
  token = restored->token();
  EXPECT_EQ(ReasonOf(second, secret), "WRONG_SECRET");
  EXPECT_EQ(ReasonOf(second, next->secret()), "NOT_CHECKPOINTED");
}

TEST_F(CheckpointTest, BeforeItsLastMessageASessionEndsWithItsProcess) {
  BeginAsleep();
  EXPECT_EQ(control->LetGo(sessions[0]->id, "guess").detail().reason, "WRONG_SECRET");
  control->SessionLost(sessions[0]->id, "its process has ended");
  EXPECT_EQ(ReasonOf(restored_process, secret), "SESSION_LOST");
  EXPECT_EQ(control->SnapshotGroups().at(0).state, "broken");
}

TEST_F(CheckpointTest, AProcessThatHasNotHeardTheAnswerGoesOn) {
  ControlOptions options;
  options.restart_grace = std::chrono::seconds(10);
  BeginAsleep(options);
  ASSERT_TRUE(LetGo().ok());
  v1::ReattachRequest request;
  request.set_session_id(sessions[0]->id);
  request.set_token(token);
  EXPECT_FALSE(control->Reattach(restored_process, request).ok());
  ASSERT_TRUE(control->Reattach(sessions[0]->peer, request).ok());
  EXPECT_TRUE(control->Authenticate(token).ok());
  EXPECT_EQ(ReasonOf(restored_process, secret), "NOT_CHECKPOINTED");
}

TEST_F(CheckpointTest, WhatIsAwakeIsNamed) {
  Begin();
  PlanAll("ar");
  const Status awake = control->BeginCheckpoint(sessions[0]).status();
  EXPECT_EQ(awake.detail().reason, "NOT_SUSPENDED");
  EXPECT_THAT(awake.message(), ::testing::HasSubstr("'tp'"));
  Sleep();
  v1::OpenChannelRequest request;
  request.set_gpu_uuid(control->options().topology.gpus[0].uuid);
  request.set_entries(16);
  const auto opened = control->OpenChannel(sessions[0], request, Waiter::For(kWaitBudget));
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(control->BeginCheckpoint(sessions[0]).status().detail().reason, "HAS_CHANNELS");
}

TEST_F(CheckpointTest, ItEndsAtTheBoundOfTime) {
  ControlOptions options;
  options.suspension_limit = std::chrono::milliseconds(1);
  BeginAsleep(options);
  ASSERT_TRUE(LetGo().ok());
  const auto begun = std::chrono::steady_clock::now();
  while (!control->SnapshotSessions().empty() && control->SnapshotSessions().size() == kWorld &&
         std::chrono::steady_clock::now() - begun < kWaitBudget)
    control->EndLongSuspensions();
  EXPECT_THAT(control->SnapshotSessions(), SizeIs(1));
  EXPECT_EQ(ReasonOf(restored_process, secret), "SUSPENSION_LIMIT");
}

TEST_F(CheckpointTest, SharedMemoryIsSentAgain) {
  BeginAsleep();
  v1::TakeSharedRequest request;
  request.add_group_ids(group);
  const auto taken = control->TakeShared(sessions[0], request);
  ASSERT_TRUE(taken.ok()) << taken.status().ToString();
  EXPECT_THAT(lease.last_of(IdOf(0)), SizeIs(1));
  request.add_registration_ids(12345);
  EXPECT_EQ(control->TakeShared(sessions[0], request).status().code(), Code::kNotFound);
}

TEST_F(CheckpointTest, SessionsWithGpusStayWithTheirProcesses) {
  BeginOnCuda();
  EXPECT_EQ(control->BeginCheckpoint(sessions[0]).status().code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace tandem::daemon
