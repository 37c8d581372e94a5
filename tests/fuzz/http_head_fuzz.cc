// Fuzzes heads of HTTP requests: any bytes are refused, unfinished or a head, and more bytes behind a head,
// or its beginning alone, change nothing.
#include <string>
#include <string_view>

#include "daemon/observe/http_head.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  using namespace tandem::daemon;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)BasicCredentials(text);
  const Result<std::optional<HttpHead>> head = ParseHttpHead(text);
  if (!head.ok()) return 0;
  if (!head->has_value()) {
    fuzz::Expect(size < kMaxHttpHead, "a head that is too long is still read");
    return 0;
  }
  const HttpHead& found = **head;
  fuzz::Expect(!found.method.empty(), "a request without a method");
  for (const std::string* part : {&found.method, &found.path, &found.host, &found.authorization}) {
    fuzz::Expect(part->find_first_of(std::string("\r\n\0", 3)) == std::string::npos,
                 "a line end within a field");
  }
  (void)BasicCredentials(found.authorization);
  const size_t end = text.find("\r\n\r\n") + 4;
  for (const std::string& other : {std::string(text) + "more", std::string(text.substr(0, end))}) {
    const Result<std::optional<HttpHead>> again = ParseHttpHead(other);
    fuzz::Expect(again.ok() && again->has_value(), "bytes behind a head change it");
    fuzz::Expect((*again)->path == found.path && (*again)->host == found.host,
                 "bytes behind a head change it");
  }
  return 0;
}
