#include "client/lib/base/registrations.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/gpu_name.h"

namespace tandem::client {
namespace {

Status WrongDevice(const std::string& memorys, const std::string& ranks) {
  return InvalidArgument("the memory is on " + memorys + ", the group's rank has " + ranks)
      .WithDetail({.reason = "WRONG_DEVICE", .field = "binding"});
}

}  // namespace

Status ForeignRegistration::Check(ClientDevice& device, uintptr_t address, size_t bytes) const {
  TANDEM_ASSIGN_OR_RETURN(bool holds, device.Holds(range_, address, bytes));
  if (holds) return Status::Ok();
  return FailedPrecondition("the memory has been freed since it was registered: register what is there now")
      .WithDetail({.reason = "MEMORY_FREED", .field = "binding"});
}

void Registrations::Add(const std::byte* data, size_t bytes, const std::string& gpu_uuid, uint64_t group_id,
                        uint64_t registration_id, const std::string& group_name) {
  std::unique_lock lock(mutex_);
  own_.emplace(reinterpret_cast<uintptr_t>(data),
               Own{bytes, gpu_uuid, group_id, registration_id, group_name});
}

std::vector<Registrations::Memory> Registrations::OwnMemories() const {
  std::vector<Memory> memories;
  std::shared_lock lock(mutex_);
  for (const auto& [begin, own] : own_) {
    if (own.group_id != 0) continue;
    memories.push_back({reinterpret_cast<std::byte*>(begin), own.bytes, own.registration_id});
  }
  return memories;
}

std::optional<std::string> Registrations::OtherGroup(const std::byte* address, uint64_t group_id) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(mutex_);
  for (const auto& [begin, own] : own_) {
    if (own.group_id != 0 && own.group_id != group_id && at >= begin && at - begin < own.bytes)
      return own.group_name;
  }
  return std::nullopt;
}

void Registrations::Remove(const std::byte* data, uint64_t registration_id) {
  if (ended_->InChild()) return;
  std::unique_lock lock(mutex_);
  auto [first, last] = own_.equal_range(reinterpret_cast<uintptr_t>(data));
  for (auto it = first; it != last; ++it) {
    if (it->second.registration_id != registration_id) continue;
    own_.erase(it);
    return;
  }
}

bool Registrations::HasForeign() const {
  std::shared_lock lock(mutex_);
  return !foreign_.empty();
}

uint64_t Registrations::ForeignBytes() const {
  std::set<uint64_t> seen;
  uint64_t bytes = 0;
  std::shared_lock lock(mutex_);
  for (const auto& [base, registration] : foreign_) {
    for (const ForeignRange::Piece& piece : registration->range().pieces) {
      if (seen.insert(piece.id).second) bytes += piece.bytes;
    }
  }
  return bytes;
}

void Registrations::SetGpus(const std::vector<GpuDescription>& gpus) {
  std::unique_lock lock(mutex_);
  for (const GpuDescription& gpu : gpus) gpus_.push_back(gpu.uuid);
}

void Registrations::UseGpu(const std::string& gpu_uuid) {
  std::unique_lock lock(mutex_);
  used_gpus_.insert_or_assign(std::string(DeviceUuid(gpu_uuid)), gpu_uuid);
}

Result<std::string> Registrations::GpuNameOf(const std::string& device_uuid,
                                             const std::string& gpu_uuid) const {
  if (DeviceUuid(gpu_uuid) == device_uuid) return gpu_uuid;
  std::shared_lock lock(mutex_);
  if (auto it = used_gpus_.find(device_uuid); it != used_gpus_.end()) return it->second;
  const bool shared = std::any_of(gpus_.begin(), gpus_.end(), [&](const std::string& gpu) {
    return gpu != device_uuid && DeviceUuid(gpu) == device_uuid;
  });
  if (!shared) return device_uuid;
  return FailedPrecondition("several engines share " + device_uuid +
                            ", and the rank decides which of them gets the memory: join a group on it first")
      .WithDetail({.reason = "NO_SHARE", .field = "device_pointer"});
}

std::shared_ptr<ForeignRegistration> Registrations::Find(ClientDevice& device, uintptr_t address,
                                                         size_t bytes, std::string_view gpu_uuid) const {
  std::shared_lock lock(mutex_);
  // Ranges may overlap (chunks registered for one tensor and, with others, for a longer one): the nearest is
  // mostly it.
  for (auto it = foreign_.upper_bound(address); it != foreign_.begin();) {
    --it;
    const std::string& registered = it->second->range().gpu_uuid;
    if (registered != gpu_uuid && DeviceUuid(registered) == DeviceUuid(gpu_uuid)) continue;  // another share
    Result<bool> holds = device.Holds(it->second->range(), address, bytes);
    if (holds.ok() && *holds) return it->second;
  }
  return nullptr;
}

Result<std::shared_ptr<ForeignRegistration>> Registrations::Foreign(ClientControl& control,
                                                                    ClientDevice& device, const void* address,
                                                                    size_t bytes,
                                                                    const std::string& gpu_uuid) {
  auto at = reinterpret_cast<uintptr_t>(address);
  if (auto known = Find(device, at, bytes, gpu_uuid)) return known;
  std::lock_guard registering(registering_mutex_);
  if (auto known = Find(device, at, bytes, gpu_uuid)) return known;
  TANDEM_ASSIGN_OR_RETURN(ForeignRange range, device.Describe(address, bytes));
  TANDEM_ASSIGN_OR_RETURN(range.gpu_uuid, GpuNameOf(range.gpu_uuid, gpu_uuid));
  // The memory before is deregistered before its successor is registered.
  if (Sweep(device)) Deregister(control);
  TANDEM_ASSIGN_OR_RETURN(ExportedRange exported, device.Export(range));
  RegisterInfo info;
  info.gpu_uuid = range.gpu_uuid;
  info.bytes = range.bytes();
  for (const UniqueFd& fd : exported.fds) info.fds.push_back(fd.get());
  info.chunk_bytes = exported.chunk_bytes;
  info.ipc_handle = exported.ipc_handle;
  Result<uint64_t> id = control.Register(info);
  if (!id.ok() && id.status().code() == Code::kResourceExhausted) {
    if (reap_) reap_();
    if (Sweep(device, true)) {
      Deregister(control);
      id = control.Register(info);
    }
  }
  TANDEM_RETURN_IF_ERROR(id.status());
  auto made = std::make_shared<ForeignRegistration>(ended_, *id, std::move(range));
  std::unique_lock lock(mutex_);
  foreign_.emplace(made->range().base(), made);
  return made;
}

Result<LaunchBinding> Registrations::Resolve(ClientControl& control, ClientDevice& device, uint64_t group_id,
                                             const std::string& gpu_uuid, const void* address, size_t bytes,
                                             BoundRegistrations* bound) {
  auto at = reinterpret_cast<uintptr_t>(address);
  {
    std::shared_lock lock(mutex_);
    for (auto it = own_.upper_bound(at); it != own_.begin();) {
      --it;
      const Own& own = it->second;
      uint64_t offset = at - it->first;
      if (offset >= own.bytes || (own.group_id != 0 && own.group_id != group_id)) continue;
      if (own.gpu_uuid != gpu_uuid) return WrongDevice(own.gpu_uuid, gpu_uuid);
      if (bytes > own.bytes - offset)
        return OutOfRange("the memory at the address ends before the slot's bytes do")
            .WithDetail({.reason = "BINDING_TOO_SMALL"});
      return LaunchBinding{own.registration_id, offset};
    }
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ForeignRegistration> foreign,
                          Foreign(control, device, address, bytes, gpu_uuid));
  if (foreign->range().gpu_uuid != gpu_uuid) {
    return WrongDevice(foreign->range().gpu_uuid, gpu_uuid);
  }
  const LaunchBinding binding{foreign->id(), at - foreign->range().base()};
  bound->Add(std::move(foreign));
  return binding;
}

bool Registrations::Sweep(ClientDevice& device, bool unused) {
  std::vector<std::shared_ptr<ForeignRegistration>> gone;
  std::vector<std::shared_ptr<ForeignRegistration>> all;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [base, registration] : foreign_) all.push_back(registration);
  }
  for (const auto& registration : all) {
    Result<bool> vanished = device.Vanished(registration->range());
    // Two holders: the map and `all`.
    if ((vanished.ok() && *vanished) || (unused && registration.use_count() == 2))
      gone.push_back(registration);
  }
  all.clear();
  if (gone.empty()) return false;
  std::unique_lock lock(mutex_);
  for (const auto& registration : gone) {
    std::erase_if(foreign_, [&](const auto& entry) { return entry.second == registration; });
  }
  lock.unlock();
  return true;
}

void Registrations::Deregister(ClientControl& control) {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(ended_->mutex);
    ids.swap(ended_->ids);
  }
  for (uint64_t id : ids) (void)control.Deregister(id);
}

}  // namespace tandem::client
