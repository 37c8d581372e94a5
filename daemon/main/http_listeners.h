// File: http_listeners.h
//
// `HttpListeners`: the addresses where tandemd answers by HTTP, as the configuration has them: the metrics',
// with health, and the page's. Jobs need neither: an address that cannot be used costs what it would serve,
// and not the node.
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
  // Listens where `config` says, also again where that has failed, and nowhere else. Not thread-safe.
  void Apply(const Config& config);
  // Why something is not served that `config` asks for, by the name of its table: "metrics", "web".
  // Thread-safe.
  std::map<std::string, std::string> Errors() const;

 private:
  struct Listener {
    std::string address = "off";  // as it was asked for
    std::unique_ptr<HttpServer> server;
  };
  template <typename Start>
  void ApplyOne(const std::string& table, const std::string& address, Listener& listener, const Start& start);
  void SetError(const std::string& table, const std::string& text);

  const AdminSources& sources_;
  Listener metrics_, web_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> errors_;  // under mutex_
};

}  // namespace tandem::daemon
