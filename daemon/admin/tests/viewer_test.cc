#include "daemon/admin/viewer.h"

#include <gmock/gmock.h>

#include "daemon/admin/admin_service.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

TEST(ViewerTest, OperatorsSeeAllAndUsersTheirOwn) {
  const ViewRules rules{.daemon_uid = 90, .group = 50};
  const auto sees_all = [&](const Caller& caller) { return ViewerFor(caller, rules).sees_all(); };
  EXPECT_TRUE(sees_all({.uid = 0, .in_own_namespace = true}));
  EXPECT_TRUE(sees_all({.uid = 90, .in_own_namespace = true}));
  EXPECT_TRUE(sees_all({.uid = 7, .groups = {3, 50}, .in_own_namespace = true}));
  EXPECT_FALSE(sees_all({.uid = 7, .groups = {3}, .in_own_namespace = true}));
  // Root of a container, and its groups.
  EXPECT_FALSE(sees_all({.uid = 0, .groups = {50}, .in_own_namespace = false}));
  const Viewer own = ViewerFor({.uid = 7}, rules);
  EXPECT_TRUE(own.Sees(7));
  EXPECT_FALSE(own.Sees(0));
  EXPECT_TRUE(ViewerFor({.uid = 7}, {.all = true}).sees_all());
  EXPECT_FALSE(Viewer::OfNone().Sees(0));
  EXPECT_FALSE(Viewer::OfNone().sees_all());
}

class ViewedTest : public ControlTest {
 protected:
  // The fixture's sessions are of uid 7.
  void SetUp() override {
    Start(2);
    const auto sessions = AttachAll(2);
    group = Join(sessions);
    for (auto& reply : Together(2, [&](int rank) {
           return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "plan"),
                                   Waiter::For(kWaitBudget));
         })) {
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      plan = reply->plan().plan_id();
    }
    auto fd = CreateStatsArea(4, 16);
    ASSERT_TRUE(fd.ok());
    areas.push_back(*StatsArea::Map(fd->get()));
    areas[0].Time({}, {plan, 1, 1, 100, 110, 150, 0});
    sources.control = control.get();
    sources.engines = engines.get();
    sources.topology = control->options().topology;
    sources.stats = areas;
    config.socket_group.clear();
    sources.config = &config;
  }
  AdminService Service(const Viewer& viewer) {
    return AdminService(sources, kMaxReplyBytes, [viewer](const std::string&) { return viewer; });
  }

  AdminSources sources;
  Config config;
  std::vector<StatsArea> areas;
  uint64_t group = 0, plan = 0;
};

TEST_F(ViewedTest, ListingsHaveWhatTheCallerSeesAndCountTheRest) {
  for (const bool own : {true, false}) {
    AdminService service = Service(Viewer::Of(own ? 7 : 8));
    admin::v1::ListSessionsReply sessions;
    EXPECT_TRUE(service.ListSessions(nullptr, nullptr, &sessions).ok());
    EXPECT_EQ(sessions.sessions_size(), own ? 2 : 0);
    EXPECT_EQ(sessions.hidden(), own ? 0u : 2u);
    admin::v1::ListGroupsReply groups;
    EXPECT_TRUE(service.ListGroups(nullptr, nullptr, &groups).ok());
    EXPECT_EQ(groups.groups_size(), own ? 1 : 0);
    EXPECT_EQ(groups.hidden(), own ? 0u : 1u);
    admin::v1::ListPoolsReply pools;
    EXPECT_TRUE(service.ListPools(nullptr, nullptr, &pools).ok());
    ASSERT_EQ(pools.pools_size(), 2);
    EXPECT_GT(pools.pools(0).segment_bytes(), 0u);
    EXPECT_EQ(pools.pools(0).segments_size() > 0, own);
    EXPECT_EQ(pools.hidden() > 0, !own);
    admin::v1::ListPlansRequest list;
    admin::v1::ListPlansReply plans;
    EXPECT_TRUE(service.ListPlans(nullptr, &list, &plans).ok());
    EXPECT_EQ(plans.plans_size(), own ? 1 : 0);
    EXPECT_EQ(plans.hidden(), own ? 0u : 1u);
    list.set_plan_id(plan);
    EXPECT_EQ(service.ListPlans(nullptr, &list, &plans).error_code(),
              own ? grpc::StatusCode::OK : grpc::StatusCode::NOT_FOUND);
    list.set_plan_id(0);
    list.set_group_id(group);
    EXPECT_EQ(service.ListPlans(nullptr, &list, &plans).error_code(),
              own ? grpc::StatusCode::OK : grpc::StatusCode::NOT_FOUND);
    admin::v1::GetTraceRequest ask;
    admin::v1::GetTraceReply trace;
    EXPECT_TRUE(service.GetTrace(nullptr, &ask, &trace).ok());
    EXPECT_EQ(trace.chrome_trace_json().find("\"ts\"") != std::string::npos, own)
        << trace.chrome_trace_json();
  }
}

TEST_F(ViewedTest, DoctorNamesNoOtherUsersGroups) {
  EXPECT_EQ(GatherDoctor(sources, Viewer::Of(7)).groups.size(), 1u);
  const DoctorInput other = GatherDoctor(sources, Viewer::Of(8));
  EXPECT_TRUE(other.groups.empty());
  ASSERT_EQ(other.sessions.size(), 2u);
  EXPECT_EQ(other.sessions[0].command, "of another user");
}

TEST_F(ViewedTest, WhoIsNotKnownSeesNothing) {
  AdminService service = Service(Viewer::OfNone());
  admin::v1::ListSessionsReply sessions;
  EXPECT_TRUE(service.ListSessions(nullptr, nullptr, &sessions).ok());
  EXPECT_EQ(sessions.sessions_size(), 0);
  EXPECT_EQ(sessions.hidden(), 2u);
}

}  // namespace
}  // namespace tandem::daemon
