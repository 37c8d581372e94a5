// One verdict for all ranks of a join, with the first cause: for ranks that wait, and for ranks that come
// late.
#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class VerdictTest : public ControlTest {
 protected:
  std::future<Status> JoinSoon(const SessionRef& session, const v1::JoinGroupRequest& request,
                               Waiter waiter) {
    return std::async(std::launch::async,
                      [=, this] { return control->JoinGroup(session, request, waiter).status(); });
  }
  Status JoinNow(const SessionRef& session, const v1::JoinGroupRequest& request) {
    return control->JoinGroup(session, request, Waiter::For(kWaitBudget)).status();
  }
  // Waits until so many ranks have taken their slots.
  bool Seated(size_t count) {
    return Eventually([&] {
      const auto groups = control->SnapshotGroups();
      return groups.size() == 1 && groups[0].members.size() == count;
    });
  }
  // Ranks `first` to `last` of four, one after the other.
  std::vector<std::future<Status>> JoinInTurn(const std::vector<SessionRef>& sessions, int first, int last) {
    std::vector<std::future<Status>> calls;
    for (int rank = first; rank <= last; ++rank) {
      calls.push_back(
          JoinSoon(sessions[static_cast<size_t>(rank)], JoinRequest(4, rank), Waiter::For(kWaitBudget)));
      EXPECT_TRUE(Seated(static_cast<size_t>(rank - first) + 1));
    }
    return calls;
  }
  // All four join, each for the first time since its verdict.
  void ExpectJoined(const std::vector<SessionRef>& sessions) { EXPECT_NE(Join(sessions), 0u); }
};

TEST_F(VerdictTest, ARankThatNeverComesIsNamedToAllAlike) {
  Start(4);
  const auto sessions = AttachAll(4);
  const auto start = Waiter::Clock::now();
  auto calls = JoinInTurn(sessions, 0, 1);
  // The first of their deadlines decides for all.
  const Status first =
      control->JoinGroup(sessions[2], JoinRequest(4, 2), Waiter::For(std::chrono::milliseconds(400)))
          .status();
  EXPECT_EQ(first.code(), Code::kDeadlineExceeded) << first.ToString();
  EXPECT_EQ(first.detail().reason, "RANK_LATE");
  EXPECT_EQ(first.detail().who, "rank 3");
  EXPECT_THAT(first.detail().ranks, ElementsAre(3));
  EXPECT_THAT(first.message(), MatchesRegex(".*group 'tp': rank 3 did not join within [0-9.]+ s.*"));
  for (auto& call : calls) EXPECT_EQ(call.get(), first);
  EXPECT_LT(Waiter::Clock::now() - start, kWaitBudget / 2);
  // The late rank gets it too, at once; so it does not wait for ranks that have gone.
  EXPECT_EQ(JoinNow(sessions[3], JoinRequest(4, 3)), first);
  ExpectJoined(sessions);
}

TEST_F(VerdictTest, ADuplicateRankEndsTheJoinOfAll) {
  Start(4);
  const auto sessions = AttachAll(4);
  const SessionRef intruder = Attach(2000);
  auto calls = JoinInTurn(sessions, 0, 1);
  const Status verdict = JoinNow(intruder, JoinRequest(4, 1));
  EXPECT_EQ(verdict.code(), Code::kAlreadyExists) << verdict.ToString();
  EXPECT_EQ(verdict.detail().reason, "JOIN_MISMATCH");
  EXPECT_THAT(verdict.detail().ranks, ElementsAre(1));
  EXPECT_EQ(verdict.detail().pid, 2000);
  EXPECT_THAT(verdict.message(), HasSubstr("rank 1 is taken by pid 1001; pid 2000 asks for it too"));
  for (auto& call : calls) EXPECT_EQ(call.get(), verdict);
  for (int rank : {2, 3})
    EXPECT_EQ(JoinNow(sessions[static_cast<size_t>(rank)], JoinRequest(4, rank)), verdict);
  ExpectJoined(sessions);
}

TEST_F(VerdictTest, AnotherWorldSizeNamesBothRanks) {
  Start(4);
  const auto sessions = AttachAll(4);
  auto calls = JoinInTurn(sessions, 0, 0);
  const Status verdict = JoinNow(sessions[1], JoinRequest(3, 1));
  EXPECT_THAT(verdict.detail().ranks, ElementsAre(0, 1));
  EXPECT_EQ(verdict.detail().who, "ranks 0, 1");
  EXPECT_EQ(verdict.detail().field, "world_size");
  EXPECT_THAT(verdict.message(), HasSubstr("rank 0 has world_size 4, rank 1 has 3"));
  EXPECT_EQ(calls[0].get(), verdict);
  for (int rank : {2, 3})
    EXPECT_EQ(JoinNow(sessions[static_cast<size_t>(rank)], JoinRequest(4, rank)), verdict);
  ExpectJoined(sessions);
}

TEST_F(VerdictTest, AnUnknownGpuEndsTheJoinAlsoOfRanksThatComeLater) {
  Start(4);
  const auto sessions = AttachAll(4);
  v1::JoinGroupRequest wrong = JoinRequest(4, 2);
  wrong.set_gpu_uuid("GPU-none");
  const Status verdict = JoinNow(sessions[2], wrong);  // the first one to come
  EXPECT_EQ(verdict.code(), Code::kNotFound) << verdict.ToString();
  EXPECT_EQ(verdict.detail().reason, "NO_GPU");
  EXPECT_THAT(verdict.detail().ranks, ElementsAre(2));
  EXPECT_EQ(verdict.detail().pid, 1002);
  EXPECT_EQ(verdict.detail().who, "rank 2");
  for (int rank : {0, 1, 3})
    EXPECT_EQ(JoinNow(sessions[static_cast<size_t>(rank)], JoinRequest(4, rank)), verdict);
  ExpectJoined(sessions);
}

TEST_F(VerdictTest, ARankThatDiesIsNamedToAll) {
  Start(4);
  auto sessions = AttachAll(4);
  auto calls = JoinInTurn(sessions, 0, 2);
  control->SessionLost(IdOf(1), "its process has ended");
  const Status verdict = calls[0].get();
  EXPECT_EQ(verdict.code(), Code::kUnavailable) << verdict.ToString();
  EXPECT_EQ(verdict.detail().reason, "RANK_LOST");
  EXPECT_THAT(verdict.detail().ranks, ElementsAre(1));
  EXPECT_EQ(verdict.detail().pid, 1001);
  for (size_t i : {1, 2}) EXPECT_EQ(calls[i].get(), verdict);
  EXPECT_EQ(JoinNow(sessions[3], JoinRequest(4, 3)), verdict);
  sessions[1] = Attach(1001);
  ExpectJoined(sessions);
}

// A process that was started after the verdict belongs to the next attempt of the job.
TEST_F(VerdictTest, AProcessOfTheNextAttemptOpensANewJoin) {
  Start(2);
  const auto sessions = AttachAll(2);
  const Status late =
      control->JoinGroup(sessions[0], JoinRequest(2, 0), Waiter::For(std::chrono::milliseconds(1))).status();
  EXPECT_EQ(late.detail().reason, "RANK_LATE");
  const SessionRef restarted = Attach(3001, Waiter::Clock::now());
  auto call = JoinSoon(restarted, JoinRequest(2, 1), Waiter::For(kWaitBudget));
  ASSERT_TRUE(Seated(1));
  EXPECT_TRUE(JoinNow(sessions[0], JoinRequest(2, 0)).ok());
  EXPECT_TRUE(call.get().ok());
}

TEST_F(VerdictTest, AVerdictIsForgottenInTime) {
  ControlOptions options;
  options.verdict_memory = std::chrono::milliseconds(0);
  Start(2, options);
  const auto sessions = AttachAll(2);
  const Status late =
      control->JoinGroup(sessions[0], JoinRequest(2, 0), Waiter::For(std::chrono::milliseconds(1))).status();
  EXPECT_EQ(late.detail().reason, "RANK_LATE");
  auto call = JoinSoon(sessions[1], JoinRequest(2, 1), Waiter::For(kWaitBudget));
  ASSERT_TRUE(Seated(1));
  EXPECT_TRUE(JoinNow(sessions[0], JoinRequest(2, 0)).ok());
  EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(control->Snapshot().names, 1u);
}

// An engine that is held down stays so until an operator acts: nobody waits for it, and the message has the
// cure.
TEST_F(VerdictTest, ACrashLoopedEngineFailsAJoinAtOnce) {
  Start(2);
  const auto sessions = AttachAll(2);
  engines->HoldDown(1);
  auto call = JoinSoon(sessions[0], JoinRequest(2, 0), Waiter::For(kWaitBudget));
  ASSERT_TRUE(Seated(1));
  const auto since = Waiter::Clock::now();
  const Status verdict = JoinNow(sessions[1], JoinRequest(2, 1));
  EXPECT_EQ(verdict.code(), Code::kUnavailable) << verdict.ToString();
  EXPECT_EQ(verdict.detail().reason, "ENGINE_CRASH_LOOPED");
  EXPECT_EQ(verdict.detail().gpu, 1);
  EXPECT_EQ(verdict.detail().who, "gpu 1");
  EXPECT_THAT(verdict.detail().ranks, ElementsAre(1));
  EXPECT_THAT(verdict.message(), HasSubstr("tandemctl reset 1"));
  EXPECT_EQ(call.get(), verdict);
  v1::OpenChannelRequest open;
  open.set_gpu_uuid(control->options().topology.gpus[1].uuid);
  const Status channel = control->OpenChannel(sessions[1], open, Waiter::For(kWaitBudget)).status();
  EXPECT_EQ(channel.detail().reason, "ENGINE_CRASH_LOOPED") << channel.ToString();
  EXPECT_LT(Waiter::Clock::now() - since, kWaitBudget / 2);
  EXPECT_EQ(control->Snapshot().groups, 0u);
}

TEST_F(VerdictTest, ACrashLoopEndsCallsThatWaitForTheEngine) {
  Start(2);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  engines->Kill(1);
  auto waits = std::async(std::launch::async, [&] {
    return control->Prepare(sessions[0], AllReduce(group, "k"), Waiter::For(kWaitBudget)).status();
  });
  engines->HoldDown(1);  // after more crashes, which the control plane does not hear of
  const auto since = Waiter::Clock::now();
  const Status reported = waits.get();
  EXPECT_EQ(reported.detail().reason, "ENGINE_CRASH_LOOPED") << reported.ToString();
  EXPECT_LT(Waiter::Clock::now() - since, kWaitBudget / 2);
}

}  // namespace
}  // namespace tandem::daemon
