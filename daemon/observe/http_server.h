// File: http_server.h
//
// `HttpServer`: small answers by HTTP to GET and HEAD, for monitoring and for the page. An idle or slow
// connection is closed after some seconds, and holds nobody else up: http_loop.h has the connections, and a
// few threads make the answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/observe/http_loop.h"
#include "daemon/observe/http_security.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct HttpAnswer {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::string> headers = {};  // whole lines without their ends: "Cache-Control: no-store"
};

struct HttpRoute {
  std::string path;  // "/metrics": this path and no other
  // Called from the server's threads, side by side, with the request's Host ("" without one).
  std::function<HttpAnswer(const std::string& host)> answer;
};

class HttpServer {
 public:
  // `listen` is "address:port", port 0 for any free one. UNAVAILABLE reports why it cannot listen.
  static Result<std::unique_ptr<HttpServer>> Start(
      const std::string& listen, std::vector<HttpRoute> routes, HttpLimits limits = {},
      std::shared_ptr<const HttpSecurity> security = std::make_shared<const HttpSecurity>());
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  // Where it listens.
  int port() const;
  // For connections from now on. Thread-safe.
  void SetSecurity(std::shared_ptr<const HttpSecurity> security);

 private:
  struct Parts;
  explicit HttpServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem::daemon
