#include "daemon/observe/http_server.h"

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

// A connection has one of the threads until its request has come, or until the time is up. More idle
// connections than threads hold the next one up for the timeout at most. Who asks sends its request at once.
constexpr char kRequestTimeoutMs[] = "500";
// Connections that wait for a thread.
constexpr char kConnectionQueue[] = "512";

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

const char* Phrase(int code) {
  switch (code) {
    case 200: return "OK";
    case 403: return "Forbidden";
    default: return "Service Unavailable";
  }
}

int Handle(mg_connection* connection, void* data) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  if (method != "GET" && method != "HEAD") {
    mg_send_http_error(connection, 405, "%s", "GET or HEAD");
    return 405;
  }
  const char* host = mg_get_header(connection, "Host");
  const HttpAnswer answer = static_cast<const HttpRoute*>(data)->answer(host == nullptr ? "" : host);
  std::string head = "HTTP/1.1 " + std::to_string(answer.code) + " " + Phrase(answer.code) +
                     "\r\nContent-Type: " + answer.type +
                     "\r\nContent-Length: " + std::to_string(answer.body.size()) +
                     "\r\nConnection: close\r\n";
  for (const std::string& line : answer.headers) head += line + "\r\n";
  head += "\r\n";
  mg_write(connection, head.data(), head.size());
  if (method == "GET") mg_write(connection, answer.body.data(), answer.body.size());
  return answer.code;
}

}  // namespace

struct HttpServer::Parts {
  std::string listen;
  std::vector<HttpRoute> routes;  // as long as `context`, whose handlers point at them
  std::mutex mutex;
  std::string last_message;  // the library's latest one; under mutex
  mg_context* context = nullptr;
};

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
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

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                      std::vector<HttpRoute> routes, int threads) {
  auto parts = std::make_unique<Parts>();
  parts->listen = listen;
  parts->routes = std::move(routes);
  mg_callbacks callbacks{};
  callbacks.log_message = [](const mg_connection* connection, const char* message) {
    auto* own = static_cast<Parts*>(mg_get_user_data(mg_get_context(connection)));
    if (own == nullptr) return 1;
    std::lock_guard<std::mutex> lock(own->mutex);
    own->last_message = message;
    return 1;
  };
  const std::string count = std::to_string(threads);
  std::array<const char*, 9> options = {"listening_ports",  listen.c_str(),       "num_threads",
                                        count.c_str(),      "request_timeout_ms", kRequestTimeoutMs,
                                        "connection_queue", kConnectionQueue,     nullptr};
  mg_init_library(0);
  mg_context* context = mg_start(&callbacks, parts.get(), options.data());
  if (context == nullptr) {
    return Unavailable("cannot listen at " + listen + ": " +
                       (parts->last_message.empty() ? "the address cannot be used" : parts->last_message));
  }
  parts->context = context;
  for (HttpRoute& route : parts->routes)
    mg_set_request_handler(context, (route.path + "$").c_str(), &Handle, &route);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

int HttpServer::port() const {
  mg_server_port port{};
  return mg_get_server_ports(parts_->context, 1, &port) == 1 ? port.port : 0;
}

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
