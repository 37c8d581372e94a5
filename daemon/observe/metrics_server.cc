#include "daemon/observe/metrics_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "common/unique_fd.h"

namespace tandem::daemon {
namespace {

// A connection has one of the threads until its request has come, or until the time is up. So many idle
// connections hold nobody up; more of them hold the next one up for the timeout at most.
constexpr char kThreads[] = "8";
constexpr char kRequestTimeoutMs[] = "3000";

struct Answer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

Answer HealthAnswer(bool good, const char* name, const Health& health) {
  Answer answer;
  answer.code = good ? 200 : 503;
  answer.body = std::string(good ? "" : "not ") + name + "\n";
  if (!good) {
    for (const std::string& reason : health.reasons) answer.body += reason + "\n";
  }
  return answer;
}

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
  std::function<MetricsInput()> gather;
  std::function<Health()> health;
  std::mutex mutex;
  std::string last_message;  // the library's latest one; under mutex
  mg_context* context = nullptr;

  Answer Metrics() {
    return {.code = 200,
            .type = "text/plain; version=0.0.4; charset=utf-8",
            .body = prometheus::TextSerializer().Serialize(CollectMetrics(gather()))};
  }
  Answer Live() {
    const Health now = health();
    return HealthAnswer(now.live, "live", now);
  }
  Answer Ready() {
    const Health now = health();
    return HealthAnswer(now.ready, "ready", now);
  }

  template <Answer (Parts::*kMethod)()>
  static int Handle(mg_connection* connection, void* parts) {
    const std::string_view method = mg_get_request_info(connection)->request_method;
    if (method != "GET" && method != "HEAD") {
      mg_send_http_error(connection, 405, "%s", "GET or HEAD");
      return 405;
    }
    const Answer answer = (static_cast<Parts*>(parts)->*kMethod)();
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
              answer.code, answer.code == 200 ? "OK" : "Service Unavailable", answer.type.c_str(),
              answer.body.size());
    if (method == "GET") mg_write(connection, answer.body.data(), answer.body.size());
    return answer.code;
  }
};

MetricsServer::MetricsServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

MetricsServer::~MetricsServer() {
  // The library's accepting thread looks for its end only every other second, or when somebody connects.
  int own_port = port();
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    mg_stop(parts_->context);
    ended.store(true);
  });
  while (!ended.load()) {
    Knock(parts_->listen, own_port);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ending.join();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen,
                                                            std::function<MetricsInput()> gather,
                                                            std::function<Health()> health) {
  auto parts = std::make_unique<Parts>();
  parts->listen = listen;
  parts->gather = std::move(gather);
  parts->health = std::move(health);
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection* connection, const char* message) {
    auto* own = static_cast<Parts*>(mg_get_user_data(mg_get_context(connection)));
    if (own == nullptr) return 1;
    std::lock_guard<std::mutex> lock(own->mutex);
    own->last_message = message;
    return 1;
  };
  std::array<const char*, 7> options = {"listening_ports",    listen.c_str(),    "num_threads", kThreads,
                                        "request_timeout_ms", kRequestTimeoutMs, nullptr};
  mg_init_library(0);
  mg_context* context = mg_start(&callbacks, parts.get(), options.data());
  if (context == nullptr) {
    return Unavailable("metrics cannot be served at " + listen + ": " +
                       (parts->last_message.empty() ? "the address cannot be used" : parts->last_message));
  }
  parts->context = context;
  mg_set_request_handler(context, "/metrics$", &Parts::Handle<&Parts::Metrics>, parts.get());
  mg_set_request_handler(context, "/livez$", &Parts::Handle<&Parts::Live>, parts.get());
  mg_set_request_handler(context, "/readyz$", &Parts::Handle<&Parts::Ready>, parts.get());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(parts)));
}

int MetricsServer::port() const {
  mg_server_port port{};
  return mg_get_server_ports(parts_->context, 1, &port) == 1 ? port.port : 0;
}

}  // namespace tandem::daemon
