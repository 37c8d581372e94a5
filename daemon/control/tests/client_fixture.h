// File: client_fixture.h
//
// A group of two ranks whose plans are placed in the clients, for tests of the control plane.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "daemon/control/base/status_proto.h"
#include "daemon/control/tests/control_fixture.h"
#include "ipc/verdict_page.h"

namespace tandem::daemon {

class ClientPlacementTest : public ControlTest {
 protected:
  static constexpr int kWorld = 2;

  void Begin(ControlOptions options = {}) {
    options.placement = plan::PlanPlacement::kClient;
    Start(kWorld, options);
    sessions = AttachAll(kWorld);
    group = Join(sessions);
  }
  // On the CUDA backend, and no group yet.
  void BeginOnCuda() {
    ControlOptions options;
    options.backend = "cuda";
    options.placement = plan::PlanPlacement::kClient;
    Start(kWorld, options);
    sessions = AttachAll(kWorld);
  }
  // Joins `name` on all ranks, after say(rank, &request) has completed each rank's request. The group's id.
  template <typename Say>
  uint64_t JoinAs(const std::string& name, const Say& say) {
    const auto joined = Together(kWorld, [&](int rank) {
      v1::JoinGroupRequest request = JoinRequest(kWorld, rank, name);
      say(rank, &request);
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
    EXPECT_TRUE(joined[0].ok()) << joined[0].status().ToString();
    return joined[0].ok() ? joined[0]->group_id() : 0;
  }
  // The same request on all ranks.
  std::vector<Result<v1::PrepareReply>> PrepareOnAll(const v1::PrepareRequest& request) {
    return Together(kWorld, [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
  }
  std::vector<Result<v1::PrepareReply>> PrepareAll(const std::string& key, int64_t elements = 1024) {
    return PrepareOnAll(AllReduce(group, key, elements));
  }
  Status Arm(int rank, uint64_t plan, const Status& refusal = {},
             std::chrono::milliseconds wait_budget = kWaitBudget) {
    v1::ArmPlanRequest request;
    request.set_plan_id(plan);
    if (!refusal.ok()) FillStatusDetail(refusal, request.mutable_refusal());
    return control->ArmPlan(sessions[static_cast<size_t>(rank)], request, Waiter::For(wait_budget));
  }
  // The plan's id; prepared and armed on all ranks.
  uint64_t PlanAll(const std::string& key, int64_t elements = 1024) {
    const auto replies = PrepareAll(key, elements);
    for (const auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    if (!replies[0].ok()) return 0;
    const uint64_t plan = replies[0]->plan().plan_id();
    for (const Status& armed : Together(kWorld, [&](int rank) { return Arm(rank, plan); }))
      EXPECT_TRUE(armed.ok()) << armed.ToString();
    return plan;
  }
  // A member's mapping of the page, from the descriptors that it was sent last.
  VerdictPage PageOf(int rank) {
    const auto fds = lease.last_of(IdOf(rank));
    EXPECT_FALSE(fds.empty());
    auto page = VerdictPage::Map(fds[0]->get());
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    return std::move(*page);
  }
  Status Report(int rank, uint64_t launch, int awaited, const Status& status, uint64_t plan = 0,
                uint64_t renewals = 0, int64_t rows = -1) {
    v1::ReportFailureRequest request;
    request.set_group_id(group);
    request.set_plan_id(plan);
    request.set_launch(launch);
    request.set_awaited_rank(awaited);
    request.set_renewals(renewals);
    request.set_counted_rows(rows + 1);
    FillStatusDetail(status, request.mutable_status());
    return control->ReportFailure(sessions[static_cast<size_t>(rank)], request);
  }

  std::vector<SessionRef> sessions;
  uint64_t group = 0;
};

}  // namespace tandem::daemon
