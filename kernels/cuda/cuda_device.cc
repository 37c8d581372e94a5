#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tandem::cuda {
namespace {

// The anchor is moved when it is older: elapsed times are floats of milliseconds, good to 0.5 µs for 8 s.
constexpr int64_t kAnchorLifeNs = 4'000'000'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::Create(CudaDriver* driver, int ordinal) {
  TANDEM_RETURN_IF_ERROR(driver->Init());
  TANDEM_ASSIGN_OR_RETURN(int count, driver->DeviceGetCount());
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable("no CUDA device " + std::to_string(ordinal) + ": " + std::to_string(count) + " visible");
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice());
  device->driver_ = driver;
  TANDEM_ASSIGN_OR_RETURN(device->device_, driver->DeviceGet(ordinal));
  TANDEM_ASSIGN_OR_RETURN(device->name_, driver->DeviceGetName(device->device_));
  struct Need {
    CUdevice_attribute attribute;
    const char* what;
  };
  for (const Need& need : {Need{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
                           Need{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                "memory export as descriptors"},
                           Need{CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations"},
                           Need{CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
                                "registered host memory at its own address"}}) {
    TANDEM_ASSIGN_OR_RETURN(int has, driver->DeviceGetAttribute(need.attribute, device->device_));
    if (has == 0) return Unimplemented(device->name_ + " lacks " + need.what);
  }
  TANDEM_ASSIGN_OR_RETURN(device->context_, driver->DevicePrimaryCtxRetain(device->device_));
  TANDEM_RETURN_IF_ERROR(device->Enter());
  TANDEM_ASSIGN_OR_RETURN(device->granularity_, driver->MemGetAllocationGranularity(device->AllocationProperties()));
  size_t free = 0;
  TANDEM_RETURN_IF_ERROR(driver->MemGetInfo(&free, &device->memory_bytes_));
  TANDEM_RETURN_IF_ERROR(
      driver->CtxGetStreamPriorityRange(&device->least_priority_, &device->greatest_priority_));
  TANDEM_ASSIGN_OR_RETURN(device->service_stream_,
                          driver->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, device->least_priority_));
  TANDEM_ASSIGN_OR_RETURN(device->anchor_, driver->EventCreate(CU_EVENT_DEFAULT));
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

int CudaDevice::StreamPriority(int priority) const {
  return std::clamp(greatest_priority_ + priority, greatest_priority_, least_priority_);
}

Status CudaDevice::MoveAnchor() {
  TANDEM_RETURN_IF_ERROR(driver_->EventRecord(anchor_, service_stream_));
  TANDEM_RETURN_IF_ERROR(driver_->StreamSynchronize(service_stream_));
  anchor_ns_ = NowNs();
  return Status::Ok();
}

Result<int64_t> CudaDevice::EventTimeNs(CUevent event) {
  TANDEM_RETURN_IF_ERROR(Enter());
  std::lock_guard lock(anchor_mutex_);
  if (NowNs() - anchor_ns_ > kAnchorLifeNs) TANDEM_RETURN_IF_ERROR(MoveAnchor());
  TANDEM_ASSIGN_OR_RETURN(float milliseconds, driver_->EventElapsedTime(anchor_, event));
  return anchor_ns_ + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

Result<VmmAllocation> VmmAllocation::Create(std::shared_ptr<CudaDevice> device, size_t bytes) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  VmmAllocation allocation;
  allocation.device_ = std::move(device);
  size_t granularity = allocation.device_->granularity();
  allocation.bytes_ = (bytes + granularity - 1) / granularity * granularity;
  TANDEM_ASSIGN_OR_RETURN(
      allocation.handle_,
      allocation.device_->driver().MemCreate(allocation.bytes_, allocation.device_->AllocationProperties()));
  TANDEM_RETURN_IF_ERROR(allocation.Map());
  return allocation;
}

Result<VmmAllocation> VmmAllocation::Import(std::shared_ptr<CudaDevice> device, int fd, size_t bytes) {
  size_t granularity = device->granularity();
  if (bytes == 0 || bytes % granularity != 0) {
    return InvalidArgument("a segment of " + std::to_string(bytes) + " bytes is no multiple of " +
                           std::to_string(granularity));
  }
  TANDEM_RETURN_IF_ERROR(device->Enter());
  VmmAllocation allocation;
  allocation.device_ = std::move(device);
  allocation.bytes_ = bytes;
  auto handle = allocation.device_->driver().MemImportFromFd(fd);
  if (!handle.ok()) {
    return InvalidArgument("the descriptor is no device memory that can be imported: " + handle.status().message());
  }
  allocation.handle_ = *handle;
  TANDEM_RETURN_IF_ERROR(allocation.Map().WithContext("mapping " + std::to_string(bytes) + " bytes"));
  return allocation;
}

Status VmmAllocation::Map() {
  CudaDriver& driver = device_->driver();
  TANDEM_ASSIGN_OR_RETURN(address_, driver.MemAddressReserve(bytes_, device_->granularity()));
  TANDEM_RETURN_IF_ERROR(driver.MemMap(address_, bytes_, handle_));
  mapped_ = true;
  CUmemAccessDesc access = {};
  access.location = device_->AllocationProperties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return driver.MemSetAccess(address_, bytes_, access);
}

Result<UniqueFd> VmmAllocation::Export() const {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  TANDEM_ASSIGN_OR_RETURN(int fd, device_->driver().MemExportToFd(handle_));
  return UniqueFd(fd);
}

VmmAllocation::VmmAllocation(VmmAllocation&& other) noexcept { *this = std::move(other); }

VmmAllocation& VmmAllocation::operator=(VmmAllocation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, 0);
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  mapped_ = std::exchange(other.mapped_, false);
  return *this;
}

VmmAllocation::~VmmAllocation() { Release(); }

void VmmAllocation::Release() {
  if (device_ == nullptr) return;
  // Nobody could act on an error here: the context is gone, and its memory with it.
  CudaDriver& driver = device_->driver();
  (void)device_->Enter();
  if (mapped_) (void)driver.MemUnmap(address_, bytes_);
  if (address_ != 0) (void)driver.MemAddressFree(address_, bytes_);
  if (handle_ != 0) (void)driver.MemRelease(handle_);
  device_ = nullptr;
}

}  // namespace tandem::cuda
