#include "client/lib/segment_cache.h"

#include <sys/stat.h>

#include <cerrno>

namespace tandem::client {

Result<std::shared_ptr<Mapping>> SegmentCache::Map(int fd, size_t bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return SystemError("fstat of a segment", errno);
  if (file.st_size < 0 || static_cast<size_t>(file.st_size) < bytes) {
    return Internal("the daemon sent a segment that is shorter than it says");
  }
  std::lock_guard lock(mutex_);
  std::weak_ptr<Mapping>& known = mappings_[file.st_ino];
  std::shared_ptr<Mapping> mapping = known.lock();
  if (mapping != nullptr && mapping->size() >= bytes) return mapping;
  TANDEM_ASSIGN_OR_RETURN(Mapping made, Mapping::Map(fd, 0, bytes, true));
  mapping = std::make_shared<Mapping>(std::move(made));
  known = mapping;
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  return mapping;
}

}  // namespace tandem::client
