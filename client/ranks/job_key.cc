#include "client/ranks/job_key.h"

#include <sys/random.h>

#include <cerrno>

namespace tandem {

Result<std::string> RandomJobKey() {
  unsigned char bytes[16] = {};
  if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return SystemError("getrandom", errno);
  std::string key;
  for (unsigned char byte : bytes) {
    key += "0123456789abcdef"[byte >> 4];
    key += "0123456789abcdef"[byte & 15];
  }
  return key;
}

}  // namespace tandem
