// File: segment_cache.h
//
// The segments that symmetric tensors lie in, each mapped once a GPU of this process however many tensors it
// holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/base/client_device.h"

namespace tandem::client {

// Thread-safe.
class SegmentCache {
 public:
  // The mapping of segment `id` for `gpu_uuid`, made from `fd` if nobody holds one of at least `bytes`. Takes
  // nothing of `fd`. Id 0 is nobody's: mapped anew.
  Result<std::shared_ptr<DeviceMapping>> Map(ClientDevice& device, const std::string& gpu_uuid, uint64_t id,
                                             int fd, size_t bytes);

  // Unmaps those of these segments that somebody holds; their addresses stay theirs.
  Status Unmap(const std::vector<uint64_t>& ids);
  // Maps them again: fds[i] is segment ids[i].
  Status Remap(const std::vector<uint64_t>& ids, const std::vector<UniqueFd>& fds);

 private:
  // The mappings of segment `id`, for all GPUs.
  std::vector<std::shared_ptr<DeviceMapping>> Of(uint64_t id);

  std::mutex mutex_;
  std::map<std::pair<uint64_t, std::string>, std::weak_ptr<DeviceMapping>> mappings_;
};

}  // namespace tandem::client
