#include "daemon/admin/page_server.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/admin/page.h"
#include "daemon/admin/page_state.h"

namespace tandem::daemon {
namespace {

// How old a state may be that is handed out; pages ask every two seconds.
constexpr std::chrono::milliseconds kStateAge{500};
// Stands in the page where the nonce of each answer goes.
constexpr std::string_view kNoncePlace = "@NONCE@";

const std::vector<std::string>& CommonHeaders() {
  static const std::vector<std::string> headers = {
      "Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer",
      "Cross-Origin-Resource-Policy: same-origin"};
  return headers;
}

// 128 random bits in hex: script and style of this answer, and no others, may run.
std::string MakeNonce() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return "";
  std::string text;
  for (const unsigned char byte : bytes) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", byte);
    text += hex;
  }
  return text;
}

HttpAnswer ThePage() {
  const std::string nonce = MakeNonce();
  if (nonce.empty()) return {.code = 503, .body = "no random numbers\n"};
  HttpAnswer answer{.type = "text/html; charset=utf-8", .body = std::string(kPage)};
  for (size_t at = 0; (at = answer.body.find(kNoncePlace, at)) != std::string::npos;)
    answer.body.replace(at, kNoncePlace.size(), nonce);
  answer.headers = CommonHeaders();
  answer.headers.push_back(
      "Content-Security-Policy: default-src 'none'; connect-src 'self'; script-src 'nonce-" + nonce +
      "'; style-src 'nonce-" + nonce + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  return answer;
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

// Without port and brackets.
std::string NameOf(std::string_view host) {
  if (host.starts_with('[')) return std::string(host.substr(1, host.find(']') - 1));
  return std::string(host.substr(0, host.rfind(':')));
}

}  // namespace

bool IsOwnHost(std::string_view host, std::string_view listen) {
  const std::string name = NameOf(host);
  return IsAddress(name) || name == "localhost" || (!name.empty() && name == NameOf(listen));
}

Result<std::unique_ptr<HttpServer>> ServePage(const std::string& listen, const AdminSources& sources,
                                              std::shared_ptr<const HttpSecurity> security) {
  auto state = std::make_shared<FreshText>([&sources] { return PageStateText(sources); }, kStateAge);
  const auto guarded = [listen](std::function<HttpAnswer()> answer) {
    return [listen, answer = std::move(answer)](const std::string& host) {
      if (IsOwnHost(host, listen)) return answer();
      return HttpAnswer{.code = 403, .body = "this server has another name\n", .headers = CommonHeaders()};
    };
  };
  const auto give_state = [state] {
    return HttpAnswer{.type = "application/json", .body = state->Get(), .headers = CommonHeaders()};
  };
  return HttpServer::Start(listen, {{"/", guarded(ThePage)}, {"/state.json", guarded(give_state)}}, {},
                           std::move(security));
}

}  // namespace tandem::daemon
