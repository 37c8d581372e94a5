// File: http_head.h
//
// The head of an HTTP request, read from bytes that anybody may send. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tandem/status.h"

namespace tandem::daemon {

// Bytes of a head that is read at all. Browsers send under 2 KiB.
inline constexpr size_t kMaxHttpHead = 8192;

struct HttpHead {
  std::string method;         // "GET"
  std::string path;           // "/metrics", without what stands behind a question mark
  std::string host;           // "node:9465"; "": none
  std::string authorization;  // "Basic …"; "": none
};

// The head that `text` begins with; none yet where its end has not come. INVALID_ARGUMENT reports what no
// client means: a line that is none, bytes that are no text, a field that may stand there once and comes
// twice. RESOURCE_EXHAUSTED: more than kMaxHttpHead bytes.
Result<std::optional<HttpHead>> ParseHttpHead(std::string_view text);

// The user and the password of "Basic …", with a colon between; "" where `authorization` has none.
std::string BasicCredentials(std::string_view authorization);

}  // namespace tandem::daemon
