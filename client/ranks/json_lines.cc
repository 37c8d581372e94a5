#include "client/ranks/json_lines.h"

#include <unistd.h>

#include <cerrno>

namespace tandem {

bool WriteLine(int fd, const nlohmann::json& object) {
  std::string line = object.dump() + "\n";
  size_t written = 0;
  while (written < line.size()) {
    ssize_t n = ::write(fd, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
  }
  return true;
}

bool LineReader::Fill() {
  char chunk[16384];
  ssize_t n;
  do {
    n = ::read(fd_.get(), chunk, sizeof(chunk));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) return false;
  buffer_.append(chunk, static_cast<size_t>(n));
  return true;
}

std::optional<nlohmann::json> LineReader::Next() {
  size_t end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  nlohmann::json object = nlohmann::json::parse(buffer_.substr(0, end), nullptr, false);
  buffer_.erase(0, end + 1);
  return object;
}

}  // namespace tandem
