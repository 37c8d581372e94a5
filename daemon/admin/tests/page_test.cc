// The node's page: what it shows, and that names of clients stay text.
#include "daemon/admin/page.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "daemon/admin/page_server.h"
#include "daemon/admin/page_state.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class PageTest : public ControlTest {
 protected:
  void StartNode(int gpus, const ControlOptions& options = {}) {
    Start(gpus, options);
    sources.control = control.get();
    sources.engines = engines.get();
    sources.topology = control->options().topology;
    sources.backend = "host";
    sources.version = "1.2.3";
    for (int gpu = 0; gpu < gpus; ++gpu) {
      areas.push_back(*StatsArea::Map(CreateStatsArea(4, 2048)->get()));
    }
    sources.stats = areas;
  }
  json State() { return json::parse(PageStateText(sources)); }

  AdminSources sources;
  std::vector<StatsArea> areas;
};

TEST_F(PageTest, ShowsSessionsGroupsAndTopology) {
  StartNode(4);
  sources.links = {{sources.topology.gpus[0].uuid, sources.topology.gpus[1].uuid, 42}};
  const auto sessions = AttachAll(2);
  Join(sessions, "tp");
  const json state = State();
  EXPECT_EQ(state["schema"], 1);
  EXPECT_EQ(state["version"], "1.2.3");
  EXPECT_EQ(state["admission"], "open");
  EXPECT_EQ(state["topology"]["class"], "nvswitch");
  ASSERT_EQ(state["topology"]["gpus"].size(), 4u);
  ASSERT_EQ(state["topology"]["links"].size(), 6u);
  EXPECT_EQ(state["topology"]["links"][0]["gpus"], json({0, 1}));
  EXPECT_EQ(state["topology"]["links"][0]["gb_per_second"], json({42, nullptr}));
  ASSERT_EQ(state["sessions"].size(), 2u);
  EXPECT_EQ(state["sessions"][0]["name"], "test");
  ASSERT_EQ(state["groups"].size(), 1u);
  EXPECT_EQ(state["groups"][0]["name"], "tp");
  EXPECT_EQ(state["groups"][0]["members"].size(), 2u);
  EXPECT_EQ(state["pools"].size(), 4u);
  EXPECT_EQ(state["truncated"], false);
  control->SetAdmission(Admission::kDraining);
  EXPECT_EQ(State()["admission"], "draining");
  EXPECT_EQ(State()["health"]["ready"], false);
}

TEST_F(PageTest, TheTimelineHasTheLatestLaunchesWithoutSteps) {
  StartNode(2);
  const StatsRow row = areas[1].ClaimRow(7, 3);
  const auto now_ns = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                            std::chrono::nanoseconds(1));
  for (uint64_t launch = 1; launch <= kPageLaunches + 5; ++launch) {
    areas[1].RecordStep(
        {.plan_id = 7, .group_id = 3, .launch = launch, .start_ns = 1, .end_ns = 2, .step = 1});
    areas[1].Time(row, {.plan_id = 7,
                        .group_id = 3,
                        .launch = launch,
                        .arrive_ns = now_ns - 3'000'000,
                        .start_ns = now_ns - 2'000'000,
                        .end_ns = launch % 2 == 0 ? 0 : now_ns - 1'000'000,
                        .code = launch % 2 == 0 ? 4 : 0});
  }
  const json timeline = State()["timeline"];
  ASSERT_EQ(timeline.size(), kPageLaunches);
  EXPECT_EQ(timeline.front()["launch"], 6);
  EXPECT_EQ(timeline.front()["code"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(timeline.front()["end_us"], nullptr);
  EXPECT_EQ(timeline.back()["launch"], kPageLaunches + 5);
  EXPECT_EQ(timeline.back()["gpu"], 1);
  EXPECT_NEAR(timeline.back()["end_us"].get<double>() - timeline.back()["start_us"].get<double>(), 1000, 1);
  EXPECT_LT(timeline.back()["end_us"].get<double>(), -999);
}

TEST_F(PageTest, ListsAreBounded) {
  ControlOptions options;
  options.limits.sessions = options.limits.sessions_per_uid = 2 * kPageSessions;
  StartNode(1, options);
  for (size_t i = 0; i < kPageSessions + 1; ++i) Attach(static_cast<int>(1000 + i));
  const json state = State();
  EXPECT_EQ(state["sessions"].size(), kPageSessions);
  EXPECT_EQ(state["counts"]["sessions"], kPageSessions + 1);
  EXPECT_EQ(state["truncated"], true);
}

TEST(FreshTextTest, IsMadeOnceForAllWhoAskAtOnce) {
  int made = 0;
  FreshText text([&made] { return std::to_string(++made); }, std::chrono::hours(1));
  EXPECT_EQ(text.Get(), "1");
  EXPECT_EQ(text.Get(), "1");
  FreshText stale([&made] { return std::to_string(++made); }, std::chrono::milliseconds(0));
  EXPECT_EQ(stale.Get(), "2");
  EXPECT_EQ(stale.Get(), "3");
}

TEST(PageTextTest, HasNoOutsideResourcesAndMakesNoMarkupOfTexts) {
  const std::string page(kPage);
  EXPECT_THAT(page, testing::StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, testing::EndsWith("</html>\n"));
  for (const char* never : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                            "style=", "onclick", " src=", " href=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(never)));
  }
}

TEST(PageServerTest, ABrowserThatWasLedHereByAnotherNameIsRefused) {
  const std::string listen = "127.0.0.1:9465";
  for (const char* own :
       {"127.0.0.1:9465", "127.0.0.1", "localhost:9465", "localhost", "[::1]:9465", "10.1.2.3:80"})
    EXPECT_TRUE(IsOwnHost(own, listen)) << own;
  for (const char* other : {"", "evil.example", "evil.example:9465", "127.0.0.1.evil.example:9465", "[",
                            "[evil]:1", "localhost.evil.example"})
    EXPECT_FALSE(IsOwnHost(other, listen)) << other;
  EXPECT_TRUE(IsOwnHost("node7:9465", "node7:9465"));
  EXPECT_FALSE(IsOwnHost("node8:9465", "node7:9465"));
}

}  // namespace
}  // namespace tandem::daemon
