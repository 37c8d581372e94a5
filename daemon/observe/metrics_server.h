// File: metrics_server.h
//
// The address that monitoring asks: GET /metrics for Prometheus, and /livez and /readyz for orchestrators,
// which answer 200 or 503 with one line for each cause.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/observe/health.h"
#include "daemon/observe/metrics.h"
#include "tandem/status.h"

namespace tandem::daemon {

class MetricsServer {
 public:
  // `gather` and `health` are called from the server's threads, side by side. `listen` is "address:port",
  // port 0 for any free one. UNAVAILABLE reports why it cannot listen.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                      std::function<MetricsInput()> gather,
                                                      std::function<Health()> health);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  // Where it listens.
  int port() const;

 private:
  struct Parts;
  explicit MetricsServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem::daemon
