#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "common/unique_fd.h"
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

// Connects to the server's own address and hangs up.
void Knock(const std::string& listen, int port) {
  size_t colon = listen.rfind(':');
  std::string host = colon == std::string::npos ? "127.0.0.1" : listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.valid()) (void)::connect(socket.get(), found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
}

}  // namespace

struct MetricsServer::Parts {
  std::string listen;
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

MetricsServer::~MetricsServer() {
  // The library's accepting thread looks for its end only every other second, or when somebody connects.
  int own_port = port();
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    parts_->exposer.reset();
    ended.store(true);
  });
  while (!ended.load()) {
    Knock(parts_->listen, own_port);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ending.join();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            std::function<MetricsInput()> gather) {
  auto parts = std::make_unique<Parts>();
  parts->collector = std::make_shared<Collector>(std::move(gather));
  try {  // the library's only way to say that the port is taken
    parts->exposer = std::make_unique<prometheus::Exposer>(listen, 1);
  } catch (const std::exception& error) {
    return Unavailable("metrics cannot be served at " + listen + ": " + error.what());
  }
  parts->listen = listen;
  parts->exposer->RegisterCollectable(parts->collector);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(parts)));
}

int MetricsServer::port() const { return parts_->exposer->GetListeningPorts().front(); }

}  // namespace tandem::daemon
