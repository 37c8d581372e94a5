#include "client/lib/base/segment_cache.h"

namespace tandem::client {

Result<std::shared_ptr<DeviceMapping>> SegmentCache::Map(ClientDevice& device, const std::string& gpu_uuid,
                                                         uint64_t id, int fd, size_t bytes) {
  if (id == 0) return device.Map(gpu_uuid, fd, bytes);
  std::lock_guard lock(mutex_);
  std::weak_ptr<DeviceMapping>& known = mappings_[{id, gpu_uuid}];
  std::shared_ptr<DeviceMapping> mapping = known.lock();
  if (mapping != nullptr && mapping->bytes() >= bytes) return mapping;
  TANDEM_ASSIGN_OR_RETURN(mapping, device.Map(gpu_uuid, fd, bytes));
  known = mapping;
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  return mapping;
}

}  // namespace tandem::client
