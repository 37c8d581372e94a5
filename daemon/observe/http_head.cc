#include "daemon/observe/http_head.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <utility>

namespace tandem::daemon {
namespace {

constexpr std::string_view kLineEnd = "\r\n", kHeadEnd = "\r\n\r\n";

// A character of a method or of a field's name.
bool IsTokenCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenCharacter);
}

bool IsSameName(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "GET /metrics HTTP/1.1". A target with a host, "http://node/metrics", names the host as well.
Status ParseRequestLine(std::string_view line, HttpHead* head) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return InvalidArgument("no request line");
  const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (!IsToken(method) || target.empty() || target.find(' ') != std::string_view::npos ||
      (version != "HTTP/1.1" && version != "HTTP/1.0")) {
    return InvalidArgument("no request line");
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t path = std::min(target.find('/'), target.size());
    head->host = target.substr(0, path);
    target.remove_prefix(path);
    if (target.empty()) target = "/";
    break;
  }
  head->method = method;
  head->path = target.substr(0, target.find('?'));
  return Status::Ok();
}

}  // namespace

Result<std::optional<HttpHead>> ParseHttpHead(std::string_view text) {
  const size_t end = text.substr(0, kMaxHttpHead).find(kHeadEnd);
  if (end == std::string_view::npos) {
    if (text.size() < kMaxHttpHead) return std::optional<HttpHead>();
    return ResourceExhausted("the head of the request is too long");
  }
  std::string_view rest = text.substr(0, end);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  HttpHead head;
  bool first = true, has_host = false, has_authorization = false;
  while (!rest.empty() || first) {
    const size_t length = std::min(rest.find(kLineEnd), rest.size());
    const std::string_view line = rest.substr(0, length);
    rest.remove_prefix(std::min(length + kLineEnd.size(), rest.size()));
    if (std::any_of(line.begin(), line.end(), [&](char c) { return is_control(c) && c != '\t'; }))
      return InvalidArgument("bytes that are no text");
    if (first) {
      TANDEM_RETURN_IF_ERROR(ParseRequestLine(line, &head));
      first = false;
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !IsToken(line.substr(0, colon)))
      return InvalidArgument("a line that is no field");
    const std::string_view name = line.substr(0, colon), value = Trimmed(line.substr(colon + 1));
    if (IsSameName(name, "host")) {
      if (std::exchange(has_host, true)) return InvalidArgument("two hosts");
      if (head.host.empty()) head.host = value;
    } else if (IsSameName(name, "authorization")) {
      if (std::exchange(has_authorization, true)) return InvalidArgument("two authorizations");
      head.authorization = value;
    }
  }
  return std::optional<HttpHead>(std::move(head));
}

std::string BasicCredentials(std::string_view authorization) {
  constexpr std::string_view kScheme = "basic ";
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (!IsSameName(authorization.substr(0, kScheme.size()), kScheme)) return "";
  std::string_view code = Trimmed(authorization.substr(kScheme.size()));
  if (code.empty() || code.size() % 4 != 0) return "";
  for (int padding = 0; padding < 2 && code.ends_with('='); ++padding) code.remove_suffix(1);
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : code) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return "";
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    text += static_cast<char>(bits >> count & 0xff);
  }
  return text.find(':') == std::string::npos ? "" : text;
}

}  // namespace tandem::daemon
