#include "daemon/observe/monitoring_routes.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>

namespace tandem::daemon {
namespace {

// With the causes where it is not good, or `always`.
HttpAnswer HealthAnswer(bool good, const char* name, const Health& health, bool always) {
  HttpAnswer answer;
  answer.code = good ? 200 : 503;
  answer.body = std::string(good ? "" : "not ") + name + "\n";
  if (!good || always) {
    for (const std::string& reason : health.reasons) answer.body += reason + "\n";
  }
  return answer;
}

}  // namespace

std::vector<HttpRoute> MonitoringRoutes(std::function<MetricsInput()> gather,
                                        std::function<Health()> health) {
  return {{"/metrics",
           [gather = std::move(gather)](const std::string&) {
             return HttpAnswer{.code = 200,
                               .type = "text/plain; version=0.0.4; charset=utf-8",
                               .body = prometheus::TextSerializer().Serialize(CollectMetrics(gather()))};
           }},
          {"/livez",
           [health](const std::string&) {
             const Health now = health();
             return HealthAnswer(now.live, "live", now, false);
           }},
          {"/readyz", [health](const std::string&) {
             const Health now = health();
             return HealthAnswer(now.ready, "ready", now, true);
           }}};
}

}  // namespace tandem::daemon
