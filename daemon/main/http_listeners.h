// File: http_listeners.h
//
// `HttpListeners`: the addresses where tandemd answers by HTTP, as the configuration has them: the metrics',
// with health, and the page's. Jobs need neither: an address that cannot be used costs what it would serve,
// and not the node. Beyond the loopback nothing is served without TLS and a password, unless the
// configuration allows it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/admin/admin_service.h"
#include "daemon/config/config.h"
#include "daemon/observe/http_server.h"

namespace tandem::daemon {

class HttpListeners {
 public:
  // `sources` outlives this.
  explicit HttpListeners(const AdminSources& sources) : sources_(sources) {}
  // Listens where `config` says, also again where that has failed, and nowhere else. Reads the certificate,
  // the key and the password again. Where they cannot be used, servers keep those that they have, and none
  // starts. Not thread-safe.
  void Apply(const Config& config);
  // Why metrics or page are not served although `config` asks for them. Keys are tables of the configuration:
  // "metrics", "web", "http".
  // Thread-safe.
  std::map<std::string, std::string> Errors() const;

 private:
  struct Listener {
    std::string address = "off";  // as it was asked for
    std::unique_ptr<HttpServer> server;
  };
  using Security = std::shared_ptr<const HttpSecurity>;
  // Null where the files cannot be used.
  Security ReadSecurity(const HttpConfig& http);
  template <typename Start>
  void ApplyOne(const std::string& table, const std::string& address, const HttpConfig& http,
                const Security& security, Listener& listener, const Start& start);
  void SetError(const std::string& table, const std::string& text);

  const AdminSources& sources_;
  Listener metrics_, web_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> errors_;  // under mutex_
};

}  // namespace tandem::daemon
