#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <mutex>
#include <utility>

#include "daemon/observe/metrics.h"

namespace tandem::daemon {
namespace {

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(std::function<MetricsInput()> gather) : gather_(std::move(gather)) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    MetricsInput input = gather_();
    std::lock_guard<std::mutex> lock(mutex_);
    launches_.Update(input);
    return CollectMetrics(input, launches_);
  }

 private:
  const std::function<MetricsInput()> gather_;
  mutable std::mutex mutex_;
  mutable LaunchCounters launches_;
};

}  // namespace

struct MetricsServer::Parts {
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
MetricsServer::~MetricsServer() = default;

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            std::function<MetricsInput()> gather) {
  auto parts = std::make_unique<Parts>();
  parts->collector = std::make_shared<Collector>(std::move(gather));
  try {  // the library's only way to say that the port is taken
    parts->exposer = std::make_unique<prometheus::Exposer>(listen, 1);
  } catch (const std::exception& error) {
    return Unavailable("metrics cannot be served at " + listen + ": " + error.what());
  }
  parts->exposer->RegisterCollectable(parts->collector);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(parts)));
}

int MetricsServer::port() const { return parts_->exposer->GetListeningPorts().front(); }

}  // namespace tandem::daemon
