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

std::vector<std::shared_ptr<DeviceMapping>> SegmentCache::Of(uint64_t id) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<DeviceMapping>> found;
  for (auto it = mappings_.lower_bound({id, std::string()}); it != mappings_.end() && it->first.first == id;
       ++it) {
    if (std::shared_ptr<DeviceMapping> mapping = it->second.lock()) found.push_back(std::move(mapping));
  }
  return found;
}

Status SegmentCache::Unmap(const std::vector<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    for (const auto& mapping : Of(id)) TANDEM_RETURN_IF_ERROR(mapping->Unmap());
  }
  return Status::Ok();
}

Status SegmentCache::Remap(const std::vector<uint64_t>& ids, const std::vector<UniqueFd>& fds) {
  if (ids.size() != fds.size()) return Internal("the daemon's segments and descriptors do not fit together");
  for (size_t i = 0; i < ids.size(); ++i) {
    for (const auto& mapping : Of(ids[i])) TANDEM_RETURN_IF_ERROR(mapping->Remap(fds[i].get()));
  }
  return Status::Ok();
}

}  // namespace tandem::client
