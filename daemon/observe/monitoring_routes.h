// File: monitoring_routes.h
//
// The paths that monitoring asks at the metrics' address.
#pragma once

#include <functional>
#include <vector>

#include "daemon/observe/health.h"
#include "daemon/observe/http_server.h"
#include "daemon/observe/metrics.h"

namespace tandem::daemon {

// /metrics for Prometheus, and /livez and /readyz for orchestrators, which answer 200 or 503 with one line
// for each cause. A node with some GPUs ready answers 200 with such lines.
std::vector<HttpRoute> MonitoringRoutes(std::function<MetricsInput()> gather, std::function<Health()> health);

}  // namespace tandem::daemon
