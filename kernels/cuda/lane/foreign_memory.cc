#include "kernels/cuda/lane/foreign_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::cuda {

// One open handle. Closing may block behind lanes.
class ForeignMemory::Allocation {
 public:
  Allocation(std::shared_ptr<CudaDevice> device, CUdeviceptr address)
      : device_(std::move(device)), address_(address) {}
  ~Allocation() {
    (void)device_->Enter();
    (void)device_->driver().IpcCloseMemHandle(address_);
  }
  CUdeviceptr address() const { return address_; }

 private:
  std::shared_ptr<CudaDevice> device_;
  CUdeviceptr address_;
};

class ForeignMemory::Part : public Segment {
 public:
  Part(std::shared_ptr<Allocation> allocation, uint64_t offset, size_t bytes)
      : allocation_(std::move(allocation)), offset_(offset), bytes_(bytes) {}
  std::byte* data() const override { return reinterpret_cast<std::byte*>(allocation_->address() + offset_); }
  size_t bytes() const override { return bytes_; }
  bool ReleaseBlocks() const override { return true; }

 private:
  std::shared_ptr<Allocation> allocation_;
  uint64_t offset_;
  size_t bytes_;
};

namespace {

// Translates the driver's refusal of a handle for its sender.
Status OpenError(const Status& status) {
  const std::string& reason = status.detail().reason;
  const std::string& text = status.message();
  if (reason == "CUDA_ERROR_INVALID_CONTEXT" || reason == "CUDA_ERROR_DEVICE_UNINITIALIZED") {
    return InvalidArgument("the IPC handle is of memory of this very process: " + text);
  }
  if (reason == "CUDA_ERROR_MAP_FAILED") {
    return FailedPrecondition(
        "the memory behind the IPC handle cannot be mapped; its owner may have freed it: " + text);
  }
  if (status.code() == Code::kInvalidArgument) {
    return InvalidArgument("the IPC handle is none, or its memory has been freed: " + text);
  }
  return status;
}

}  // namespace

Result<std::unique_ptr<Segment>> ForeignMemory::Open(std::string_view handle, uint64_t offset, size_t bytes) {
  CUipcMemHandle raw = {};
  if (handle.size() != sizeof(raw)) {
    return InvalidArgument("an IPC handle has " + std::to_string(sizeof(raw)) + " bytes, not " +
                           std::to_string(handle.size()));
  }
  std::memcpy(&raw, handle.data(), sizeof(raw));
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  CudaDriver& driver = device_->driver();
  std::lock_guard lock(mutex_);
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Allocation> allocation;
  if (auto found = open_.find(handle); found != open_.end()) allocation = found->second.lock();
  if (allocation == nullptr) {
    auto address = driver.IpcOpenMemHandle(raw);
    if (!address.ok()) return OpenError(address.status());
    allocation = std::make_shared<Allocation>(device_, *address);
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  TANDEM_RETURN_IF_ERROR(driver.MemGetAddressRange(allocation->address(), &base, &size));
  size -= static_cast<size_t>(allocation->address() - base);
  // A range that leaves the allocation is not refused here: that would close the handle at once, and block
  // behind lanes.
  offset = std::min<uint64_t>(offset, size);
  bytes = std::min<size_t>(bytes, size - offset);
  open_[std::string(handle)] = allocation;
  return std::unique_ptr<Segment>(std::make_unique<Part>(std::move(allocation), offset, bytes));
}

}  // namespace tandem::cuda
