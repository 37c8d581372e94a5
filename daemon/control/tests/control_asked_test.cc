// Operators' requests to suspend a job, in the control plane (docs/suspend.md).
#include <gmock/gmock.h>

#include <future>

#include "daemon/control/tests/client_fixture.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class AskedSuspensionTest : public ClientPlacementTest {
 protected:
  using Request = v1::ServeSuspensionRequest;

  Result<v1::ServeSuspensionReply> Serve(int rank, Request::Phase phase, uint64_t request = 0,
                                         uint64_t step = 0) {
    Request asked;
    asked.set_phase(phase);
    asked.set_request(request);
    asked.set_step(step);
    return control->ServeSuspension(sessions[static_cast<size_t>(rank)], asked, Waiter::For(kWaitBudget));
  }
  void OfferAll() {
    for (int rank = 0; rank < kWorld; ++rank) ASSERT_TRUE(Serve(rank, Request::OFFER).ok());
  }
  std::future<Result<AskedJob>> Ask(milliseconds wait_budget = kWaitBudget) {
    return std::async(std::launch::async, [this, wait_budget] {
      return control->SuspendJob(
          IdOf(0), [](uint32_t) { return true; }, Waiter::For(wait_budget));
    });
  }
  // The id of the request that a session hears of.
  uint64_t Heard(int rank) {
    const auto event = NextOfKind(sessions[static_cast<size_t>(rank)], v1::Event::SUSPEND_REQUESTED);
    return event.ok() ? event->request() : 0;
  }
  void Step(v1::SuspendGroupRequest::Step step) {
    const auto replies = Together(kWorld, [&](int rank) {
      v1::SuspendGroupRequest request;
      request.set_group_id(group);
      request.set_step(step);
      return control->SuspendGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
    for (const auto& reply : replies) ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  }
};

TEST_F(AskedSuspensionTest, TheStepIsBehindTheLargestBegun) {
  Begin();
  OfferAll();
  auto asked = Ask();
  const uint64_t request = Heard(0);
  ASSERT_NE(request, 0u);
  EXPECT_EQ(Heard(1), request);
  const auto agreed =
      Together(kWorld, [&](int rank) { return Serve(rank, Request::AGREE, request, rank == 0 ? 7 : 4); });
  for (const auto& reply : agreed) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->step(), 8u);
  }
  for (const auto& reply : Together(kWorld, [&](int rank) { return Serve(rank, Request::ARRIVED, request); }))
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
  Step(v1::SuspendGroupRequest::STOPPED);
  EXPECT_EQ(asked.wait_for(milliseconds(0)), std::future_status::timeout);  // the memory is there still
  Step(v1::SuspendGroupRequest::UNMAPPED);
  const auto job = asked.get();
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_THAT(job->sessions, ElementsAre(IdOf(0), IdOf(1)));
  EXPECT_THAT(job->groups, ElementsAre(group));
  EXPECT_TRUE(Ask(milliseconds(0)).get().ok());  // it sleeps
}

TEST_F(AskedSuspensionTest, ALateSessionIsNamedAndNobodySleepsForTheRequest) {
  Begin();
  OfferAll();
  auto asked = Ask(milliseconds(2000));
  const uint64_t request = Heard(0);
  auto first = std::async(std::launch::async, [&] { return Serve(0, Request::AGREE, request, 3); });
  const auto job = asked.get();
  EXPECT_EQ(job.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(job.status().detail().reason, "SESSION_LATE");
  EXPECT_THAT(job.status().message(), HasSubstr("session " + std::to_string(IdOf(1)) + " "));
  EXPECT_THAT(job.status().message(), Not(HasSubstr("session " + std::to_string(IdOf(0)) + " ")));
  EXPECT_EQ(first.get().status().detail().reason, "WITHDRAWN");
  EXPECT_EQ(Serve(1, Request::AGREE, request, 3).status().detail().reason, "WITHDRAWN");
  EXPECT_EQ(Serve(1, Request::ARRIVED, request).status().detail().reason, "WITHDRAWN");
  EXPECT_EQ(control->SnapshotGroups().at(0).state, "ready");
}

TEST_F(AskedSuspensionTest, ASessionThatEndsEndsTheRequest) {
  Begin();
  OfferAll();
  auto asked = Ask();
  const uint64_t request = Heard(0);
  auto first = std::async(std::launch::async, [&] { return Serve(0, Request::AGREE, request, 3); });
  control->SessionLost(IdOf(1), "its process ended");
  EXPECT_EQ(asked.get().status().code(), Code::kUnavailable);
  EXPECT_EQ(first.get().status().detail().reason, "WITHDRAWN");
}

TEST_F(AskedSuspensionTest, JobsThatCannotBeAsked) {
  Begin();
  EXPECT_TRUE(Serve(0, Request::OFFER).ok());
  const Status unwilling = Ask().get().status();
  EXPECT_EQ(unwilling.detail().reason, "NOT_OFFERED");
  EXPECT_THAT(unwilling.message(), HasSubstr("session " + std::to_string(IdOf(1)) + " "));
  EXPECT_TRUE(Serve(1, Request::OFFER).ok());
  const auto nobody = [](uint32_t) { return false; };
  const Waiter waiter = Waiter::For(kWaitBudget);
  EXPECT_EQ(control->SuspendJob(IdOf(0), nobody, waiter).status().code(), Code::kNotFound);
  EXPECT_EQ(control->ResumeJob(IdOf(0), nobody, waiter).status().code(), Code::kNotFound);
  const auto anybody = [](uint32_t) { return true; };
  EXPECT_EQ(control->SuspendJob(99999, anybody, waiter).status().code(), Code::kNotFound);
  const auto awake = control->ResumeJob(IdOf(0), anybody, waiter);
  ASSERT_TRUE(awake.ok()) << awake.status().ToString();
  EXPECT_TRUE(awake->groups.empty());
}

TEST_F(AskedSuspensionTest, ArrivalNeedsAnAgreement) {
  Begin();
  OfferAll();
  auto asked = Ask();
  const uint64_t request = Heard(0);
  EXPECT_EQ(Serve(0, Request::ARRIVED, request).status().detail().reason, "WRONG_STEP");
  EXPECT_EQ(Serve(0, Request::AGREE, request + 1, 1).status().detail().reason, "WITHDRAWN");
  EXPECT_EQ(Serve(0, Request::UNSPECIFIED, request).status().code(), Code::kInvalidArgument);
  control->SessionLost(IdOf(1), "its process ended");
  EXPECT_FALSE(asked.get().ok());
}

}  // namespace
}  // namespace tandem::daemon
