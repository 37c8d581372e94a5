// Listings that one reply does not hold: bounded, marked as truncated, and continued.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <utility>

#include "daemon/admin/admin_service.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

// The fields of a reply beside its entries: token, flags.
constexpr size_t kFrame = 256;

class ListingTest : public ControlTest {
 protected:
  // `groups` groups of `world` ranks, each with `plans` plans.
  void StartWith(int world, int groups, int plans) {
    Start(world);
    const auto sessions = AttachAll(world);
    for (int g = 0; g < groups; ++g) {
      const uint64_t group = Join(sessions, "group" + std::to_string(g));
      for (int p = 0; p < plans; ++p) {
        for (auto& reply : Together(world, [&](int rank) {
               return control->Prepare(sessions[static_cast<size_t>(rank)],
                                       AllReduce(group, "plan" + std::to_string(p)),
                                       Waiter::For(kWaitBudget));
             })) {
          ASSERT_TRUE(reply.ok()) << reply.status().ToString();
          ids.insert(reply->plan().plan_id());
        }
      }
    }
    sources.control = control.get();
    sources.engines = engines.get();
    sources.topology = control->options().topology;
  }
  std::vector<admin::v1::ListPlansReply> Pages(AdminService& service, admin::v1::ListPlansRequest request) {
    std::vector<admin::v1::ListPlansReply> pages;
    do {
      pages.emplace_back();
      const grpc::Status status = service.ListPlans(nullptr, &request, &pages.back());
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (!status.ok() || pages.back().plans().empty()) break;
      request.set_page_token(pages.back().next_page_token());
    } while (!request.page_token().empty());
    return pages;
  }

  AdminSources sources;
  std::set<uint64_t> ids;
};

TEST_F(ListingTest, PlansComeByPagesEachOnce) {
  StartWith(2, 3, 20);
  constexpr size_t kBytes = 16 << 10;
  AdminService service(sources, kBytes);
  for (const bool programs : {false, true}) {
    admin::v1::ListPlansRequest request;
    request.set_programs(programs);
    const auto pages = Pages(service, request);
    EXPECT_GT(pages.size(), 2u);
    std::multiset<uint64_t> listed;
    for (const auto& page : pages) {
      EXPECT_LE(page.ByteSizeLong(), kBytes + kFrame);
      for (const auto& plan : page.plans()) {
        listed.insert(plan.info().plan_id());
        EXPECT_EQ(plan.programs_size(), programs ? 2 : 0);
      }
    }
    EXPECT_EQ(listed.size(), ids.size());
    EXPECT_EQ(std::set<uint64_t>(listed.begin(), listed.end()), ids);
  }
  // All of it in one reply where it fits.
  AdminService roomy(sources);
  const auto all = Pages(roomy, {});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(static_cast<size_t>(all[0].plans_size()), ids.size());
  // With the same figures of the groups' workspaces as in the listing of groups.
  admin::v1::ListGroupsReply groups;
  ASSERT_TRUE(roomy.ListGroups(nullptr, nullptr, &groups).ok());
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> workspace;
  for (const auto& group : groups.groups()) {
    workspace[group.id()] = {group.workspace_bytes(), group.unshared_workspace_bytes()};
  }
  for (const auto& plan : all[0].plans()) {
    const auto& info = plan.info();
    EXPECT_GT(info.group_workspace_bytes(), 0u);
    EXPECT_EQ(std::pair(info.group_workspace_bytes(), info.unshared_workspace_bytes()),
              workspace[info.group_id()]);
  }
}

TEST_F(ListingTest, AListingThatFillsAReplyIsCutAtALine) {
  StartWith(2, 0, 0);
  const auto sessions = AttachAll(2);
  const uint64_t group = Join(sessions);
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.algorithm = Algorithm::kRing;
  request.steps = 64;
  request.operands = {{Role::kA, {DType::kF32, {512, 64}, {}}, false, -1},
                      {Role::kB, {DType::kF32, {64, 64}, {}}, false, -1},
                      {Role::kC, {DType::kF32, {1024, 64}, {}}, false, -1}};
  v1::PrepareRequest prepare;
  prepare.set_group_id(group);
  prepare.set_key("long");
  *prepare.mutable_request() = OpRequestToProto(request);
  for (auto& reply : Together(2, [&](int rank) {
         return control->Prepare(sessions[static_cast<size_t>(rank)], prepare, Waiter::For(kWaitBudget));
       })) {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  }
  admin::v1::ListPlansRequest list;
  list.set_programs(true);
  AdminService roomy(sources);
  const auto whole = Pages(roomy, list);
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_FALSE(whole[0].plans(0).truncated());
  const std::string listing = whole[0].plans(0).programs(1);
  ASSERT_GT(listing.size(), 4096u);
  AdminService tight(sources, 8192);
  const auto cut = Pages(tight, list);
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_TRUE(cut[0].plans(0).truncated());
  const std::string part = cut[0].plans(0).programs(1);
  EXPECT_LE(part.size(), 8192u / 2 / 2);
  EXPECT_GT(part.size(), 1024u);
  EXPECT_EQ(part.back(), '\n');
  EXPECT_TRUE(listing.starts_with(part));
  // Where not even the explanation fits, that alone is given.
  AdminService none(sources, 64);
  const auto explanation = Pages(none, list);
  ASSERT_EQ(explanation.size(), 1u);
  EXPECT_TRUE(explanation[0].plans(0).truncated());
  EXPECT_EQ(explanation[0].plans(0).programs_size(), 0);
}

TEST_F(ListingTest, AForeignPageTokenIsRefused) {
  StartWith(1, 1, 1);
  AdminService service(sources);
  for (const char* token : {"x", "1", "1.", ".1", "1.2.3", "-1.2", "99999999999999999999.1"}) {
    admin::v1::ListPlansRequest request;
    admin::v1::ListPlansReply reply;
    request.set_page_token(token);
    EXPECT_EQ(service.ListPlans(nullptr, &request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << token;
  }
}

TEST_F(ListingTest, OtherListingsSayThatTheyAreCut) {
  StartWith(2, 20, 0);
  AdminService service(sources, 512), roomy(sources);
  admin::v1::ListGroupsReply groups, all_groups;
  EXPECT_TRUE(service.ListGroups(nullptr, nullptr, &groups).ok());
  EXPECT_TRUE(roomy.ListGroups(nullptr, nullptr, &all_groups).ok());
  EXPECT_TRUE(groups.truncated());
  EXPECT_GT(groups.groups_size(), 0);
  EXPECT_LE(groups.ByteSizeLong(), 512 + kFrame);
  EXPECT_FALSE(all_groups.truncated());
  EXPECT_EQ(all_groups.groups_size(), 20);
  admin::v1::ListPoolsReply pools;
  EXPECT_TRUE(service.ListPools(nullptr, nullptr, &pools).ok());
  EXPECT_TRUE(pools.truncated());
  EXPECT_EQ(pools.pools_size(), 2);
  admin::v1::ListSessionsReply sessions;
  EXPECT_TRUE(AdminService(sources, 64).ListSessions(nullptr, nullptr, &sessions).ok());
  EXPECT_TRUE(sessions.truncated());
}

TEST_F(ListingTest, ATraceTakesNoMoreThanItIsAllowed) {
  StartWith(1, 1, 1);
  auto fd = CreateStatsArea(4, 4096);
  ASSERT_TRUE(fd.ok());
  std::vector<StatsArea> areas;
  areas.push_back(*StatsArea::Map(fd->get()));
  for (uint64_t launch = 1; launch <= 4096; ++launch) {
    areas[0].Time({}, {*ids.begin(), 1, launch, launch * 100, launch * 100 + 10, launch * 100 + 50, 0});
  }
  sources.stats = areas;
  AdminService service(sources, 64 << 10);
  for (const uint32_t asked : {0u, 20000u, 1u << 31}) {
    admin::v1::GetTraceRequest request;
    admin::v1::GetTraceReply reply;
    request.set_max_bytes(asked);
    EXPECT_TRUE(service.GetTrace(nullptr, &request, &reply).ok());
    EXPECT_EQ(reply.truncated(), asked != 1u << 31) << asked;
    EXPECT_LE(reply.chrome_trace_json().size(),
              asked == 0 ? size_t{64} << 10 : std::min<size_t>(asked, kMaxTraceBytes));
  }
}

}  // namespace
}  // namespace tandem::daemon
