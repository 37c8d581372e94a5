#include "client/lib/base/cache_folder.h"

#include <cstdlib>

namespace tandem::client {

std::string CacheFolder() {
  if (const char* given = ::secure_getenv("TANDEM_CACHE_DIR"); given != nullptr) return given;
  if (const char* cache = ::secure_getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return std::string(cache) + "/tandem";
  if (const char* home = ::secure_getenv("HOME"); home != nullptr && *home == '/')
    return std::string(home) + "/.cache/tandem";
  return {};
}

}  // namespace tandem::client
