#include "kernels/cuda/device/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/backend.h"

namespace tandem::cuda {
namespace {

// The anchor is moved when it is older: elapsed times are floats of milliseconds, good to 0.5 µs for 8 s.
constexpr int64_t kAnchorLifeNs = 4'000'000'000;
// The anchor's time lies between the last look that did not find it reached and the first that did. The
// anchor with the least time between these looks is taken, of so many; at once where that is little.
constexpr int kAnchorTries = 4;
constexpr int64_t kCloseLooksNs = 1500;
// After so long without a look that finds it, this thread sleeps until it is reached, and notices late.
constexpr int64_t kAnchorWaitBudgetNs = 200'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::Create(CudaDriver* driver, int ordinal) {
  TANDEM_RETURN_IF_ERROR(driver->Init());
  TANDEM_ASSIGN_OR_RETURN(int count, driver->DeviceGetCount());
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable("no CUDA device " + std::to_string(ordinal) + ": " + std::to_string(count) +
                       " visible");
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice());
  device->driver_ = driver;
  TANDEM_ASSIGN_OR_RETURN(device->device_, driver->DeviceGet(ordinal));
  TANDEM_ASSIGN_OR_RETURN(device->name_, driver->DeviceGetName(device->device_));
  struct Need {
    CUdevice_attribute attribute;
    const char* what;
  };
  for (const Need& need :
       {Need{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        Need{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, "memory export as descriptors"},
        Need{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations"},
        Need{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
             "registered host memory at its own address"}}) {
    TANDEM_ASSIGN_OR_RETURN(int has, driver->DeviceGetAttribute(need.attribute, device->device_));
    if (has == 0) return Unimplemented(device->name_ + " lacks " + need.what);
  }
  TANDEM_ASSIGN_OR_RETURN(device->context_, driver->DevicePrimaryCtxRetain(device->device_));
  TANDEM_RETURN_IF_ERROR(device->Enter());
  TANDEM_ASSIGN_OR_RETURN(device->granularity_,
                          driver->MemGetAllocationGranularity(device->AllocationProperties()));
  size_t free = 0;
  TANDEM_RETURN_IF_ERROR(driver->MemGetInfo(&free, &device->memory_bytes_));
  TANDEM_RETURN_IF_ERROR(
      driver->CtxGetStreamPriorityRange(&device->least_priority_, &device->greatest_priority_));
  TANDEM_ASSIGN_OR_RETURN(device->service_stream_,
                          driver->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, device->least_priority_));
  for (CUevent& anchor : device->anchors_) {
    TANDEM_ASSIGN_OR_RETURN(anchor, driver->EventCreate(CU_EVENT_DEFAULT));
  }
  TANDEM_RETURN_IF_ERROR(device->MoveAnchor());
  return device;
}

CUmemAllocationProp CudaDevice::AllocationProperties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

Status CudaDevice::Enter() const {
  TANDEM_ASSIGN_OR_RETURN(CUcontext current, driver_->CtxGetCurrent());
  return current == context_ ? Status::Ok() : driver_->CtxSetCurrent(context_);
}

Status CudaDevice::Health() const {
  Status status = Enter();
  if (status.ok()) status = driver_->StreamQuery(service_stream_).status();
  if (status.ok()) return status;
  return Status(Code::kAborted, status.message(), {.reason = kContextLost, .who = {}, .field = {}});
}

int CudaDevice::StreamPriority(int priority) const {
  return std::clamp(greatest_priority_ + priority, greatest_priority_, least_priority_);
}

Result<CudaDevice::Looks> CudaDevice::RecordAndLook(CUevent event) {
  const int64_t begun = NowNs();
  TANDEM_RETURN_IF_ERROR(driver_->EventRecord(event, service_stream_));
  Looks looks{.before_ns = begun, .after_ns = begun};
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const bool reached, driver_->EventQuery(event));
    looks.after_ns = NowNs();
    if (reached) return looks;
    looks.before_ns = looks.after_ns;
    if (looks.before_ns - begun < kAnchorWaitBudgetNs) continue;
    TANDEM_RETURN_IF_ERROR(driver_->StreamSynchronize(service_stream_));
    looks.after_ns = NowNs();
    return looks;
  }
}

Status CudaDevice::MoveAnchor() {
  Looks closest;
  CUevent& best = anchors_[1];
  for (int i = 0; i < kAnchorTries; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const Looks looks, RecordAndLook(anchors_[2]));
    if (i > 0 && looks.between() >= closest.between()) continue;
    closest = looks;
    std::swap(best, anchors_[2]);
    if (closest.between() <= kCloseLooksNs) break;
  }
  float passed_ms = 0;
  if (clock_.anchored()) {
    TANDEM_ASSIGN_OR_RETURN(passed_ms, driver_->EventElapsedTime(anchors_[0], best));
  }
  clock_.Anchor(closest.before_ns + closest.between() / 2, static_cast<double>(passed_ms));
  std::swap(anchors_[0], best);
  return Status::Ok();
}

Result<int64_t> CudaDevice::EventTimeNs(CUevent event) {
  TANDEM_RETURN_IF_ERROR(Enter());
  std::lock_guard lock(anchor_mutex_);
  if (NowNs() - clock_.anchor_ns() > kAnchorLifeNs) TANDEM_RETURN_IF_ERROR(MoveAnchor());
  TANDEM_ASSIGN_OR_RETURN(float milliseconds, driver_->EventElapsedTime(anchors_[0], event));
  return clock_.TimeNs(static_cast<double>(milliseconds));
}

Result<VmmAllocation> VmmAllocation::Create(std::shared_ptr<CudaDevice> device, size_t bytes) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  VmmAllocation allocation;
  allocation.device_ = std::move(device);
  const CudaDevice& on = *allocation.device_;
  size_t granularity = on.granularity();
  allocation.bytes_ = (bytes + granularity - 1) / granularity * granularity;
  TANDEM_ASSIGN_OR_RETURN(CUmemGenericAllocationHandle handle,
                          on.driver().MemCreate(allocation.bytes_, on.AllocationProperties()));
  allocation.chunks_.push_back({.handle = handle, .bytes = allocation.bytes_});
  TANDEM_RETURN_IF_ERROR(allocation.Map());
  return allocation;
}

Result<VmmAllocation> VmmAllocation::Import(std::shared_ptr<CudaDevice> device, int fd, size_t bytes) {
  const uint64_t all = bytes;
  return ImportChunks(std::move(device), {&fd, 1}, {&all, 1});
}

Result<VmmAllocation> VmmAllocation::ImportChunks(std::shared_ptr<CudaDevice> device,
                                                  std::span<const int> fds, std::span<const uint64_t> bytes) {
  if (fds.empty() || fds.size() != bytes.size())
    return InvalidArgument("each chunk has a descriptor and a size");
  const size_t granularity = device->granularity();
  TANDEM_RETURN_IF_ERROR(device->Enter());
  VmmAllocation allocation;
  allocation.device_ = std::move(device);
  for (size_t i = 0; i < fds.size(); ++i) {
    if (bytes[i] == 0 || bytes[i] % granularity != 0 || bytes[i] > (size_t{1} << 46)) {
      return InvalidArgument("device memory of " + std::to_string(bytes[i]) + " bytes is no multiple of " +
                             std::to_string(granularity));
    }
    auto handle = allocation.device_->driver().MemImportFromFd(fds[i]);
    if (!handle.ok()) {
      // A lost context refuses everything; only the others are the descriptor's fault.
      if (handle.status().code() == Code::kAborted || handle.status().code() == Code::kUnavailable) {
        return handle.status();
      }
      return InvalidArgument("the descriptor is no device memory that can be imported: " +
                             handle.status().message());
    }
    allocation.chunks_.push_back({.handle = *handle, .bytes = bytes[i]});
    allocation.bytes_ += bytes[i];
  }
  TANDEM_RETURN_IF_ERROR(
      allocation.Map().WithContext("mapping " + std::to_string(allocation.bytes_) + " bytes"));
  return allocation;
}

Status VmmAllocation::CheckOwnDevice() const {
  for (const Chunk& chunk : chunks_) {
    TANDEM_ASSIGN_OR_RETURN(CUmemAllocationProp properties,
                            device_->driver().MemGetAllocationProperties(chunk.handle));
    // A GPU that this process does not see has no ordinal here.
    if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties.location.id != device_->AllocationProperties().location.id) {
      return InvalidArgument("the memory lies on another GPU than the one that it is registered for");
    }
  }
  return Status::Ok();
}

Status VmmAllocation::Map() {
  TANDEM_ASSIGN_OR_RETURN(address_, device_->driver().MemAddressReserve(bytes_, device_->granularity()));
  return MapChunks();
}

Status VmmAllocation::MapChunks() {
  CudaDriver& driver = device_->driver();
  CUdeviceptr at = address_;
  for (Chunk& chunk : chunks_) {
    Status mapped = driver.MemMap(at, chunk.bytes, chunk.handle);
    // The driver's answer to a size that is not the allocation's.
    if (mapped.code() == Code::kInvalidArgument || mapped.code() == Code::kUnimplemented) {
      return InvalidArgument("the memory behind the descriptor has not the " + std::to_string(chunk.bytes) +
                             " bytes that were named: " + mapped.message());
    }
    TANDEM_RETURN_IF_ERROR(mapped);
    chunk.mapped = true;
    at += chunk.bytes;
  }
  CUmemAccessDesc access = {};
  access.location = device_->AllocationProperties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver.MemSetAccess(address_, bytes_, access);
}

Status VmmAllocation::Vacate() {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  CudaDriver& driver = device_->driver();
  CUdeviceptr at = address_;
  for (Chunk& chunk : chunks_) {
    if (std::exchange(chunk.mapped, false)) TANDEM_RETURN_IF_ERROR(driver.MemUnmap(at, chunk.bytes));
    at += chunk.bytes;
    if (chunk.handle != 0) TANDEM_RETURN_IF_ERROR(driver.MemRelease(std::exchange(chunk.handle, 0)));
  }
  return Status::Ok();
}

Status VmmAllocation::Refill(int fd) {
  TANDEM_RETURN_IF_ERROR(Vacate());
  TANDEM_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle, device_->driver().MemImportFromFd(fd));
  return Replace(handle);
}

Status VmmAllocation::RefillAnew() {
  if (std::all_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.mapped; }))
    return Status::Ok();
  TANDEM_RETURN_IF_ERROR(Vacate());
  TANDEM_ASSIGN_OR_RETURN(const CUmemGenericAllocationHandle handle,
                          device_->driver().MemCreate(bytes_, device_->AllocationProperties()));
  return Replace(handle);
}

Status VmmAllocation::Replace(CUmemGenericAllocationHandle handle) {
  chunks_.assign(1, {.handle = handle, .bytes = bytes_});
  Status mapped = MapChunks().WithContext("mapping " + std::to_string(bytes_) + " bytes again");
  if (!mapped.ok()) (void)Vacate();
  return mapped;
}

Result<UniqueFd> VmmAllocation::Export() const {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  TANDEM_ASSIGN_OR_RETURN(int fd, device_->driver().MemExportToFd(chunks_.front().handle));
  return UniqueFd(fd);
}

VmmAllocation::VmmAllocation(VmmAllocation&& other) noexcept { *this = std::move(other); }

VmmAllocation& VmmAllocation::operator=(VmmAllocation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  chunks_ = std::exchange(other.chunks_, {});
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

VmmAllocation::~VmmAllocation() { Release(); }

void VmmAllocation::Release() {
  if (device_ == nullptr) return;
  // Nobody could act on an error here: the context is gone, and its memory with it.
  CudaDriver& driver = device_->driver();
  (void)device_->Enter();
  CUdeviceptr at = address_;
  for (const Chunk& chunk : chunks_) {
    if (chunk.mapped) (void)driver.MemUnmap(at, chunk.bytes);
    if (chunk.handle != 0) (void)driver.MemRelease(chunk.handle);
    at += chunk.bytes;
  }
  if (address_ != 0) (void)driver.MemAddressFree(address_, bytes_);
  device_ = nullptr;
}

}  // namespace tandem::cuda
