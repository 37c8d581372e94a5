// Groups that sleep and wake up, in the control plane (docs/suspend.md).
#include <gmock/gmock.h>

#include "daemon/control/tests/client_fixture.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class SuspensionTest : public ClientPlacementTest {
 protected:
  using Request = v1::SuspendGroupRequest;
  using Replies = std::vector<Result<v1::SuspendGroupReply>>;

  // A group with plans of both placements, and a symmetric tensor.
  void BeginWithMemory(ControlOptions options = {}) {
    Begin(options);
    PlanAll("ar");
    Allocate();
  }
  void Allocate() {
    const auto met = Together(kWorld, [&](int rank) -> Status {
      tensors[static_cast<size_t>(rank)] = Empty(sessions[static_cast<size_t>(rank)], rank);
      return MakeSymmetric(rank, group);
    });
    for (const Status& status : met) ASSERT_TRUE(status.ok()) << status.ToString();
  }
  Status MakeSymmetric(int rank, uint64_t group_id) {
    v1::RendezvousRequest request;
    request.set_tensor_id(tensors[static_cast<size_t>(rank)]);
    request.set_group_id(group_id);
    return control->Rendezvous(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget))
        .status();
  }
  Result<v1::SuspendGroupReply> Step(int rank, Request::Step step, uint64_t number = 0,
                                     milliseconds wait_budget = kWaitBudget) {
    Request request;
    request.set_group_id(group);
    request.set_step(step);
    request.set_number(number);
    return control->SuspendGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(wait_budget));
  }
  Replies StepAll(Request::Step step, uint64_t number = 0) {
    return Together(kWorld, [&](int rank) { return Step(rank, step, number); });
  }
  void MustAll(Request::Step step, uint64_t number = 0) {
    for (const auto& reply : StepAll(step, number)) ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  }
  void Sleep(uint64_t number = 0) {
    MustAll(Request::STOPPED, number);
    MustAll(Request::UNMAPPED);
  }
  void WakeUp() {
    MustAll(Request::RESUMING);
    MustAll(Request::MAPPED);
  }
  GroupSnapshot Shown() { return control->SnapshotGroups().at(0); }
  uint64_t SegmentBytes() { return control->Snapshot().segment_bytes; }

  uint64_t tensors[kWorld] = {};
};

TEST_F(SuspensionTest, AsleepItHasNoMemoryAndAwakeTheSameSegments) {
  BeginWithMemory();
  const uint64_t bytes = SegmentBytes();
  ASSERT_GT(bytes, 0u);
  const auto stopped = StepAll(Request::STOPPED, 7);
  for (const auto& reply : stopped) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->number(), 9u);
    EXPECT_THAT(reply->segment_ids(), Not(IsEmpty()));
  }
  EXPECT_EQ(Shown().state, "asleep");
  EXPECT_EQ(SegmentBytes(), bytes) << "ranks have it mapped";
  MustAll(Request::UNMAPPED);
  EXPECT_EQ(SegmentBytes(), 0u);
  EXPECT_EQ(Shown().state_reason, "its ranks have suspended it");
  const auto resumed = StepAll(Request::RESUMING);
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto& reply = resumed[static_cast<size_t>(rank)];
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->number(), 9u);
    EXPECT_EQ(std::vector<uint64_t>(reply->segment_ids().begin(), reply->segment_ids().end()),
              std::vector<uint64_t>(stopped[0]->segment_ids().begin(), stopped[0]->segment_ids().end()));
    EXPECT_THAT(lease.last_of(IdOf(rank)), SizeIs(reply->segment_ids_size()));
    for (const SharedFd& fd : lease.last_of(IdOf(rank))) EXPECT_NE(fd, nullptr);
  }
  EXPECT_EQ(Shown().state, "asleep") << "until all have mapped it";
  const auto mapped = StepAll(Request::MAPPED);
  for (const auto& reply : mapped) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->renewals(), 1u);
    EXPECT_EQ(reply->generation(), 1u) << "the engines are the same";
  }
  EXPECT_EQ(Shown().state, "ready");
  EXPECT_EQ(SegmentBytes(), bytes);
  PlanAll("another");
}

TEST_F(SuspensionTest, ItSleepsAgainAndAgain) {
  BeginWithMemory();
  const uint64_t bytes = SegmentBytes();
  for (uint64_t round = 0; round < 20; ++round) {
    ASSERT_NO_FATAL_FAILURE(Sleep(10 * round));
    ASSERT_EQ(SegmentBytes(), 0u);
    ASSERT_NO_FATAL_FAILURE(WakeUp());
    ASSERT_EQ(SegmentBytes(), bytes);
  }
}

TEST_F(SuspensionTest, CallsOfASleepingGroupSaySo) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  for (const auto& reply : PrepareAll("late")) {
    EXPECT_EQ(reply.status().code(), Code::kFailedPrecondition);
    EXPECT_EQ(reply.status().detail().reason, "SUSPENDED");
  }
  v1::RenewGroupRequest renew;
  renew.set_group_id(group);
  renew.set_step(v1::RenewGroupRequest::STOPPED);
  EXPECT_EQ(control->RenewGroup(sessions[0], renew, Waiter::For(kWaitBudget)).status().detail().reason,
            "SUSPENDED");
  ASSERT_NO_FATAL_FAILURE(WakeUp());
  for (const auto& reply : PrepareAll("late")) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
}

TEST_F(SuspensionTest, ARankThatDoesNotStopIsNamedAndNothingIsLost) {
  BeginWithMemory();
  const Status alone = Step(0, Request::STOPPED, 0, milliseconds(50)).status();
  EXPECT_EQ(alone.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(alone.detail().ranks, ElementsAre(1));
  EXPECT_THAT(alone.message(), HasSubstr("rank 1 did not stop its launches"));
  EXPECT_EQ(Shown().state, "ready");
  EXPECT_EQ(Step(0, Request::UNMAPPED).status().detail().reason, "WRONG_STEP");
  PlanAll("another");
  ASSERT_NO_FATAL_FAILURE(Sleep());
  ASSERT_NO_FATAL_FAILURE(WakeUp());
}

TEST_F(SuspensionTest, LaterStepsMayBeRepeated) {
  BeginWithMemory();
  MustAll(Request::STOPPED);
  EXPECT_THAT(Step(0, Request::UNMAPPED, 0, milliseconds(50)).status().detail().ranks, ElementsAre(1));
  EXPECT_TRUE(Step(0, Request::STOPPED).ok()) << "its answer may have been lost";
  MustAll(Request::UNMAPPED);
  EXPECT_TRUE(Step(1, Request::UNMAPPED).ok());
  EXPECT_THAT(Step(1, Request::RESUMING, 0, milliseconds(50)).status().detail().ranks, ElementsAre(0));
  EXPECT_EQ(SegmentBytes(), 0u);
  MustAll(Request::RESUMING);
  EXPECT_TRUE(Step(0, Request::RESUMING).ok());
  EXPECT_THAT(Step(0, Request::MAPPED, 0, milliseconds(50)).status().detail().ranks, ElementsAre(1));
  MustAll(Request::MAPPED);
  EXPECT_TRUE(Step(0, Request::MAPPED).ok());
  const auto again = Step(0, Request::RESUMING);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->awake());
  EXPECT_EQ(again->transfer_id(), 0u);
}

TEST_F(SuspensionTest, RanksThatHaveUnmappedWakeUpWithTheMemoryThatIsThere) {
  BeginWithMemory();
  const uint64_t bytes = SegmentBytes();
  MustAll(Request::STOPPED);
  EXPECT_EQ(Step(0, Request::UNMAPPED, 0, milliseconds(50)).status().code(), Code::kDeadlineExceeded);
  ASSERT_NO_FATAL_FAILURE(WakeUp());
  EXPECT_EQ(SegmentBytes(), bytes);
}

TEST_F(SuspensionTest, RanksThatCannotMapGoToSleepAgain) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  MustAll(Request::RESUMING);
  MustAll(Request::UNMAPPED);
  EXPECT_EQ(SegmentBytes(), 0u);
  ASSERT_NO_FATAL_FAILURE(WakeUp());
  EXPECT_EQ(Shown().state, "ready");
}

TEST_F(SuspensionTest, AnEngineThatEndsAsRanksMapHasASuccessorWithTheGroup) {
  BeginWithMemory();
  const uint64_t bytes = SegmentBytes();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  MustAll(Request::RESUMING);
  engines->Kill(1);
  EXPECT_EQ(Step(0, Request::MAPPED, 0, milliseconds(50)).status().code(), Code::kDeadlineExceeded);
  engines->Restart(1);
  const auto mapped = StepAll(Request::MAPPED);
  for (const auto& reply : mapped) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->generation(), 2u);
  }
  EXPECT_TRUE(engines->Look(1).groups.contains(group));
  EXPECT_EQ(SegmentBytes(), bytes) << "ranks have it mapped";
  EXPECT_EQ(Shown().state, "ready");
}

TEST_F(SuspensionTest, WithoutASuccessorTheGroupSleepsOn) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  MustAll(Request::RESUMING);
  engines->Kill(1);
  const auto mapped =
      Together(kWorld, [&](int rank) { return Step(rank, Request::MAPPED, 0, milliseconds(300)); });
  for (const auto& reply : mapped)
    EXPECT_EQ(reply.status().code(), Code::kDeadlineExceeded) << reply.status().ToString();
  EXPECT_EQ(Shown().state, "asleep");
  EXPECT_EQ(SegmentBytes(), 0u);
  engines->Restart(1);
  ASSERT_NO_FATAL_FAILURE(WakeUp());
}

TEST_F(SuspensionTest, WhatOthersTookMeanwhileIsNamed) {
  ControlOptions options;
  options.limits.segment_bytes = uint64_t{1} << 30;
  BeginWithMemory(options);
  ASSERT_NO_FATAL_FAILURE(Sleep());
  ControlLimits limits = options.limits;
  limits.segment_bytes = uint64_t{1} << 20;
  control->SetLimits(limits);
  for (const auto& reply : StepAll(Request::RESUMING)) {
    EXPECT_EQ(reply.status().code(), Code::kResourceExhausted) << reply.status().ToString();
    EXPECT_THAT(reply.status().message(), HasSubstr("stays asleep"));
  }
  EXPECT_EQ(SegmentBytes(), 0u) << "half of the memory is none";
  EXPECT_EQ(Shown().state, "asleep");
  control->SetLimits(options.limits);
  ASSERT_NO_FATAL_FAILURE(WakeUp());
}

TEST_F(SuspensionTest, ARankThatEndsAsleepIsNamed) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  auto resuming = std::async(std::launch::async, [&] { return Step(0, Request::RESUMING).status(); });
  control->SessionLost(IdOf(1), "its process ended");
  const Status lost = resuming.get();
  EXPECT_EQ(lost.detail().reason, "RANK_LOST");
  EXPECT_THAT(lost.detail().ranks, ElementsAre(1));
  EXPECT_EQ(Step(0, Request::RESUMING).status().detail().reason, "RANK_LOST");
  EXPECT_TRUE(control->LeaveGroup(sessions[0], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_THAT(control->SnapshotGroups(), IsEmpty());
  EXPECT_EQ(SegmentBytes(), 0u);
}

TEST_F(SuspensionTest, ALeaverEndsASleepingGroup) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_EQ(Step(0, Request::RESUMING).status().detail().reason, "RANK_LEFT");
}

TEST_F(SuspensionTest, ATensorOfAnotherGroupKeepsItAwake) {
  BeginWithMemory();
  const uint64_t other = JoinAs("other", [](int, v1::JoinGroupRequest*) {});
  for (const Status& met : Together(kWorld, [&](int rank) { return MakeSymmetric(rank, other); }))
    ASSERT_TRUE(met.ok()) << met.ToString();
  for (const auto& reply : StepAll(Request::STOPPED)) {
    EXPECT_EQ(reply.status().detail().reason, "TENSOR_SHARED");
    EXPECT_THAT(reply.status().message(), HasSubstr("group " + std::to_string(other)));
  }
  // Nor does the other one sleep, whose tensor lies in this one's segments.
  const uint64_t first = std::exchange(group, other);
  for (const auto& reply : StepAll(Request::STOPPED))
    EXPECT_EQ(reply.status().detail().reason, "TENSOR_SHARED");
  group = first;
  EXPECT_EQ(Shown().state, "ready");
}

TEST_F(SuspensionTest, ATensorFreedAsleepLeavesItsPlaceToOthers) {
  BeginWithMemory();
  ASSERT_NO_FATAL_FAILURE(Sleep());
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto r = static_cast<size_t>(rank);
    ASSERT_TRUE(control->Free(sessions[r], tensors[r]).ok());
  }
  ASSERT_NO_FATAL_FAILURE(WakeUp());
  Allocate();
}

TEST_F(SuspensionTest, NonsenseIsRefused) {
  BeginWithMemory();
  EXPECT_EQ(Step(0, Request::UNSPECIFIED).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Step(0, Request::STOPPED, UINT64_MAX).status().detail().field, "number");
  for (const auto step : {Request::UNMAPPED, Request::RESUMING, Request::MAPPED})
    EXPECT_EQ(Step(0, step).status().detail().reason, "WRONG_STEP");
}

}  // namespace
}  // namespace tandem::daemon
