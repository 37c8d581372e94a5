#include "daemon/observe/monitoring_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

TEST(MonitoringRoutesTest, ServesMetricsAndHealth) {
  Health health;
  const std::vector<HttpRoute> routes =
      MonitoringRoutes([] { return MetricsInput(); }, [&] { return health; });
  const auto get = [&](const std::string& path) {
    for (const HttpRoute& route : routes) {
      if (route.path == path) return route.answer("x");
    }
    return HttpAnswer{.code = 404, .body = ""};
  };
  EXPECT_EQ(get("/metrics").code, 200);
  EXPECT_THAT(get("/metrics").body, HasSubstr("tandem_uptime_seconds"));
  EXPECT_EQ(get("/livez").body, "live\n");
  EXPECT_EQ(get("/readyz").body, "ready\n");
  health = {.live = true, .ready = false, .reasons = {"the node drains"}};
  EXPECT_EQ(get("/livez").code, 200);
  EXPECT_EQ(get("/readyz").code, 503);
  EXPECT_EQ(get("/readyz").body, "not ready\nthe node drains\n");
  // Ready on a part of the GPUs.
  health = {.live = true, .ready = true, .reasons = {"the engine is down"}};
  EXPECT_EQ(get("/readyz").code, 200);
  EXPECT_EQ(get("/readyz").body, "ready\nthe engine is down\n");
  EXPECT_EQ(get("/livez").body, "live\n");
  health = {.live = false, .ready = false, .reasons = {"tandemd makes no progress"}};
  EXPECT_EQ(get("/livez").code, 503);
  EXPECT_EQ(get("/livez").body, "not live\ntandemd makes no progress\n");
  EXPECT_EQ(get("/").code, 404);
}

}  // namespace
}  // namespace tandem::daemon
