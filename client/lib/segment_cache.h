// File: segment_cache.h
//
// The segments that symmetric tensors lie in, each mapped once however many tensors it holds.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>

#include "common/shared_memory.h"

namespace tandem::client {

// Thread-safe.
class SegmentCache {
 public:
  // The mapping of the memfd behind `fd`, made if nobody holds one of at least `bytes`. Takes nothing of `fd`.
  Result<std::shared_ptr<Mapping>> Map(int fd, size_t bytes);

 private:
  std::mutex mutex_;
  std::map<ino_t, std::weak_ptr<Mapping>> mappings_;  // a memfd's inode is its own while a mapping keeps it alive
};

}  // namespace tandem::client
