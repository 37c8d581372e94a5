#include "daemon/main/http_listeners.h"

#include <utility>

#include "common/log.h"
#include "daemon/admin/page_server.h"

namespace tandem::daemon {
namespace {

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

}  // namespace

void HttpListeners::SetError(const std::string& table, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  errors_.erase(table);
  if (!text.empty()) errors_[table] = text;
}

std::map<std::string, std::string> HttpListeners::Errors() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return errors_;
}

template <typename Start>
void HttpListeners::ApplyOne(const std::string& table, const std::string& address, Listener& listener,
                             const Start& start) {
  if (listener.address == address && (address == "off" || listener.server != nullptr)) return;
  listener.server.reset();
  listener.address = address;
  SetError(table, "");
  if (address == "off") return;
  const bool page = &listener == &web_;
  Result<std::unique_ptr<HttpServer>> server = start(address);
  if (!server.ok()) {
    const std::string error =
        std::string(page ? "the page" : "metrics") + " cannot be served: " + server.status().message();
    log::Error(error + "; serving without " + (page ? "it" : "metrics"));
    SetError(table, error);
    return;
  }
  listener.server = std::move(*server);
  log::Info(std::string(page ? "the page is" : "metrics are") + " served at " + address +
            " port=" + std::to_string(listener.server->port()));
}

void HttpListeners::Apply(const Config& config) {
  ApplyOne("metrics", config.metrics_listen, metrics_, [this](const std::string& address) {
    return HttpServer::Start(address, MonitoringRoutes([this] { return GatherMetrics(sources_); },
                                                       [this] { return GatherHealth(sources_); }));
  });
  const bool changed = web_.address != config.web_listen;
  ApplyOne("web", config.web_listen, web_,
           [this](const std::string& address) { return ServePage(address, sources_); });
  if (changed && web_.server != nullptr && !IsLoopback(config.web_listen)) {
    log::Warning("the page shows all users' sessions to everybody who reaches " + config.web_listen +
                 ": it asks for no password");
  }
}

}  // namespace tandem::daemon
