#include "daemon/main/http_listeners.h"

#include <utility>

#include "common/log.h"
#include "daemon/admin/page_server.h"
#include "daemon/observe/monitoring_routes.h"

namespace tandem::daemon {
void HttpListeners::SetError(const std::string& table, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  errors_.erase(table);
  if (!text.empty()) errors_[table] = text;
}

std::map<std::string, std::string> HttpListeners::Errors() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return errors_;
}

HttpListeners::Security HttpListeners::ReadSecurity(const HttpConfig& http) {
  SetError("http", "");
  auto security = HttpSecurity::Load({http.certificate, http.key, http.user, http.password_file});
  if (security.ok()) return *security;
  const std::string error = "TLS or the password of the page and the metrics: " + security.status().message();
  log::Error(error);
  SetError("http", error);
  return nullptr;
}

template <typename Start>
void HttpListeners::ApplyOne(const std::string& table, const std::string& address, const HttpConfig& http,
                             const Security& security, Listener& listener, const Start& start) {
  const bool page = &listener == &web_;
  const bool same = listener.address == address;
  const Status allowed = CheckExposure(http, address);
  if (same && allowed.ok() && listener.server != nullptr) {
    if (security != nullptr) listener.server->SetSecurity(security);
    return;
  }
  if (same && address == "off") return;
  listener.server.reset();
  listener.address = address;
  SetError(table, "");
  if (address == "off") return;
  Result<std::unique_ptr<HttpServer>> server =
      Unavailable("what http.certificate, http.key or http.password_file names cannot be used");
  if (!allowed.ok()) {
    server = allowed;
  } else if (security != nullptr) {
    server = start(address);
  }
  if (!server.ok()) {
    const std::string error =
        std::string(page ? "the page" : "metrics") + " cannot be served: " + server.status().message();
    log::Error(error + "; serving without " + (page ? "it" : "metrics"));
    SetError(table, error);
    return;
  }
  listener.server = std::move(*server);
  log::Info(std::string(page ? "the page is" : "metrics are") + " served at " + address + " port=" +
            std::to_string(listener.server->port()) + " tls=" + (security->has_tls() ? "yes" : "no") +
            " password=" + (security->has_password() ? "yes" : "no"));
}

void HttpListeners::Apply(const Config& config) {
  const Security security = ReadSecurity(config.http);
  ApplyOne("metrics", config.metrics_listen, config.http, security, metrics_,
           [&](const std::string& address) {
             return HttpServer::Start(address,
                                      MonitoringRoutes([this] { return GatherMetrics(sources_); },
                                                       [this] { return GatherHealth(sources_); }),
                                      {}, security);
           });
  const bool changed = web_.address != config.web_listen;
  ApplyOne("web", config.web_listen, config.http, security, web_,
           [&](const std::string& address) { return ServePage(address, sources_, security); });
  if (changed && web_.server != nullptr && !IsLoopbackAddress(config.web_listen) &&
      config.http.user.empty()) {
    log::Warning("the page shows all users' sessions to everybody who reaches " + config.web_listen +
                 ": it asks for no password");
  }
}

}  // namespace tandem::daemon
