// File: http_security.h
//
// `HttpSecurity`: what an HTTP server asks of whoever connects: TLS, and a user's name with a password. Both
// come from files, which are read once: a server takes another object when they have changed.
//
// Thread rule: constant after Load; any thread.
#pragma once

#include <memory>
#include <string>

#include "tandem/status.h"

struct ssl_ctx_st;

namespace tandem::daemon {

// Absolute paths; "" for what is not asked for.
struct HttpSecurityFiles {
  std::string certificate = {};  // PEM: the server's certificate, then those that vouch for it
  std::string key = {};          // PEM: the certificate's private key
  std::string user = {};         // a name, not a file
  std::string password = {};     // the password; one line end at its end does not count
  bool operator==(const HttpSecurityFiles&) const = default;
};

class HttpSecurity {
 public:
  // Neither TLS nor a password.
  HttpSecurity() = default;
  // Errors name the file and the cause. A key or a password that users other than its owner and root may read
  // is PERMISSION_DENIED: whoever reads it may pass for the server, or for its operator.
  static Result<std::shared_ptr<const HttpSecurity>> Load(const HttpSecurityFiles& files);

  bool has_tls() const { return tls_ != nullptr; }
  bool has_password() const { return !credentials_.empty(); }
  // Whether a request with this field may be answered. Takes the same time for any wrong password.
  bool Allows(const std::string& authorization) const;
  // OpenSSL's context, or null; as long as this object.
  ssl_ctx_st* tls() const { return tls_.get(); }

 private:
  std::shared_ptr<ssl_ctx_st> tls_;
  std::string credentials_;  // a digest of "user:password"
};

}  // namespace tandem::daemon
