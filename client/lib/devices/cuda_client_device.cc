#include "client/lib/devices/cuda_client_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/lib/base/fork_guard.h"
#include "client/lib/client_launch/client_group.h"
#include "client/lib/client_launch/cuda/cuda_client_queue.h"
#include "client/lib/cuda/context_scope.h"
#include "client/lib/cuda/cuda_launch_stream.h"
#include "client/lib/cuda/service_stream.h"
#include "common/gpu_name.h"
#include "drivers/cublaslt/cublas_lt.h"

namespace tandem::client {
namespace {

using cuda::CudaDevice;
using cuda::CudaDriver;
using cuda::VmmAllocation;

constexpr unsigned kHostFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
// The least time for the GPU to read a word: some microseconds are enough unless it is busy.
constexpr auto kReadTime = std::chrono::milliseconds(20);

// Registered pages of words. Dropped by the DeferredReclaimer only: unregistering blocks behind the GPUs'
// work.
class PinnedWords {
 public:
  PinnedWords(CudaDriver& driver, std::shared_ptr<CudaDevice> device, std::byte* data)
      : driver_(driver), device_(std::move(device)), data_(data) {}
  ~PinnedWords() {
    SlowCallScope scope(driver_);
    // Nobody could act on an error here: the context is gone, and the registration with it.
    if (device_->Enter().ok()) (void)driver_.MemHostUnregister(data_);
  }

 private:
  CudaDriver& driver_;
  const std::shared_ptr<CudaDevice> device_;
  std::byte* const data_;
};

class CudaMapping final : public DeviceMapping {
 public:
  CudaMapping(CudaDriver& driver, VmmAllocation allocation)
      : driver_(driver), allocation_(std::make_unique<VmmAllocation>(std::move(allocation))) {}
  ~CudaMapping() override {
    if (ForkCount() != born_) {
      (void)allocation_.release();  // the parent's: CUDA is not to be called in a forked child
      return;
    }
    SlowCallScope scope(driver_);
    allocation_.reset();
  }
  std::byte* data() const override { return allocation_->data(); }
  size_t bytes() const override { return allocation_->bytes(); }
  Status Unmap() override {
    SlowCallScope scope(driver_);
    return allocation_->Vacate();
  }
  Status Remap(int fd) override {
    SlowCallScope scope(driver_);
    return allocation_->Refill(fd);
  }

 private:
  CudaDriver& driver_;
  const uint64_t born_ = ForkCount();
  std::unique_ptr<VmmAllocation> allocation_;
};

}  // namespace

Result<std::shared_ptr<ClientDevice>> MakeCudaClientDevice() {
  TANDEM_ASSIGN_OR_RETURN(CudaDriver * driver, cuda::LoadCudaDriver());
  return CudaClientDevice::Create(driver);
}

Result<std::string> CudaDeviceUuid(int ordinal) {
  TANDEM_ASSIGN_OR_RETURN(CudaDriver * driver, cuda::LoadCudaDriver());
  TANDEM_RETURN_IF_ERROR(driver->Init());
  TANDEM_ASSIGN_OR_RETURN(CUdevice device, driver->DeviceGet(ordinal));
  return driver->DeviceGetUuid(device);
}

bool HasCudaProducts() { return cuda::PreloadCublasLt().ok(); }

Result<std::shared_ptr<ClientDevice>> CudaClientDevice::Create(CudaDriver* driver) {
  TANDEM_RETURN_IF_ERROR(driver->Init());
  std::shared_ptr<CudaClientDevice> client(new CudaClientDevice(driver));
  TANDEM_ASSIGN_OR_RETURN(int count, driver->DeviceGetCount());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto gpu = std::make_unique<Gpu>();
    TANDEM_ASSIGN_OR_RETURN(gpu->device, driver->DeviceGet(ordinal));
    TANDEM_ASSIGN_OR_RETURN(gpu->uuid, driver->DeviceGetUuid(gpu->device));
    client->gpus_.push_back(std::move(gpu));
  }
  return std::shared_ptr<ClientDevice>(std::move(client));
}

Result<CudaClientDevice::Gpu*> CudaClientDevice::Find(const std::string& gpu_uuid) const {
  for (const auto& gpu : gpus_) {
    if (gpu->uuid == DeviceUuid(gpu_uuid)) return gpu.get();
  }
  std::string seen;
  for (const auto& gpu : gpus_) seen += (seen.empty() ? "" : ", ") + gpu->uuid;
  return NotFound("this process does not see " + gpu_uuid + " (CUDA_VISIBLE_DEVICES?); it sees " +
                  (seen.empty() ? "none" : seen));
}

Result<CudaClientDevice::Gpu*> CudaClientDevice::FindByOrdinal(CUdevice device) const {
  for (const auto& gpu : gpus_) {
    if (gpu->device == device) return gpu.get();
  }
  return Internal("CUDA device " + std::to_string(device) + " is not visible to this process");
}

Result<std::shared_ptr<CudaDevice>> CudaClientDevice::Opened(Gpu& gpu) {
  std::lock_guard lock(gpu.mutex);
  return OpenedLocked(gpu);
}

Result<std::shared_ptr<CudaDevice>> CudaClientDevice::OpenedLocked(Gpu& gpu) {
  if (gpu.opened == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(gpu.opened, CudaDevice::Create(&driver_, gpu.device));
  }
  TANDEM_RETURN_IF_ERROR(gpu.opened->Enter());
  return gpu.opened;
}

Result<LaunchStream*> CudaClientDevice::Open(StreamRef ref, const std::string& gpu_uuid,
                                             LaunchStreamStorage* storage) {
  if (!ref.is_cuda)
    return InvalidArgument("a HostStream, but the daemon's backend is cuda: pass StreamRef::Cuda");
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  auto* stream = storage->Emplace<CudaLaunchStream>(driver_, static_cast<CUstream>(ref.cuda));
  if (stream->IsDefault() && stream->NoContext()) {
    // As the runtime does on a thread that has not called it yet.
    TANDEM_RETURN_IF_ERROR(Opened(*gpu).status());
  }
  TANDEM_RETURN_IF_ERROR(stream->Enter(gpu->device, gpu->uuid));
  return stream;
}

Result<std::shared_ptr<void>> CudaClientDevice::PinWords(const std::string& gpu_uuid, std::byte* data,
                                                         size_t bytes) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, Opened(*gpu));
  TANDEM_RETURN_IF_ERROR(driver_.MemHostRegister(data, bytes, kHostFlags).WithContext("a channel's words"));
  return std::shared_ptr<void>(std::make_shared<PinnedWords>(driver_, std::move(device), data));
}

Result<std::shared_ptr<DeviceMapping>> CudaClientDevice::Map(const std::string& gpu_uuid, int fd,
                                                             size_t bytes) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, Opened(*gpu));
  TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Import(std::move(device), fd, bytes));
  return std::shared_ptr<DeviceMapping>(std::make_shared<CudaMapping>(driver_, std::move(allocation)));
}

Result<std::shared_ptr<DeviceMapping>> CudaClientDevice::MapForeign(const std::string& gpu_uuid, int fd,
                                                                    size_t bytes) {
  return Map(gpu_uuid, fd, bytes);  // which says what is wrong with it
}

Result<UniqueFd> CudaClientDevice::Allocate(const std::string& gpu_uuid, size_t bytes, size_t* allocated) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, Opened(*gpu));
  TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Create(std::move(device), bytes));
  *allocated = allocation.bytes();
  return allocation.Export();
}

Result<std::unique_ptr<ClientQueue>> CudaClientDevice::MakeClientQueue(const std::string& gpu_uuid,
                                                                       ClientGroup& group) {
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<ClientProducts> products;
  {
    SlowCallScope scope(driver_);
    TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
    std::lock_guard lock(gpu->mutex);
    TANDEM_ASSIGN_OR_RETURN(device, OpenedLocked(*gpu));
    if (gpu->products == nullptr) gpu->products = std::make_shared<ClientProducts>(device);
    products = gpu->products;
  }
  TANDEM_ASSIGN_OR_RETURN(auto pages, ClientPages::Make(std::move(device), *this, gpu_uuid, group.page()));
  return std::unique_ptr<ClientQueue>(
      std::make_unique<CudaClientQueue>(group, std::move(pages), std::move(products)));
}

Status CudaClientDevice::CopyNow(const std::string& gpu_uuid, void* to, const void* from, size_t bytes) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<CudaDevice> device, Opened(*gpu));
  TANDEM_RETURN_IF_ERROR(driver_.MemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                             reinterpret_cast<CUdeviceptr>(from), bytes,
                                             device->service_stream()));
  return driver_.StreamSynchronize(device->service_stream());
}

// The word is in device memory, which the CPU does not reach: it is read by a copy and written by a stream's
// write, on a stream of the library that never waits for a word. A read and a write suffice where others need
// a compare-and-swap: only the sender changes a signal from 0 to 1, and only the receiver changes it back.
// Each of them is one process, whose threads take the lock below.
// So nobody else changes a word that holds `from`.
Result<bool> CudaClientDevice::Exchange32(const std::string& gpu_uuid, uint32_t* word, uint32_t from,
                                          uint32_t to, Clock::time_point deadline) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(gpu_uuid));
  std::lock_guard lock(gpu->mutex);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<CudaDevice> device, OpenedLocked(*gpu));
  if (gpu->staging == nullptr) {
    size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void* memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ResourceExhausted("no page for a signal's value");
    Status registered = driver_.MemHostRegister(memory, page, kHostFlags);
    if (!registered.ok()) {
      ::munmap(memory, page);
      return registered;
    }
    gpu->staging = static_cast<uint32_t*>(memory);
  }
  CUstream stream = device->service_stream();
  auto address = reinterpret_cast<CUdeviceptr>(word);
  // A look has this time even without any left of the caller's deadline: otherwise a signal that has arrived
  // would be missed.
  const Clock::time_point read_by = std::max(deadline, Clock::now() + kReadTime);
  // A copy that an earlier call gave up on may still be on its way into the page.
  TANDEM_ASSIGN_OR_RETURN(bool idle, AwaitServiceStream(*device, read_by));
  if (!idle) return false;
  TANDEM_RETURN_IF_ERROR(
      driver_.MemcpyAsync(reinterpret_cast<CUdeviceptr>(gpu->staging), address, sizeof(uint32_t), stream));
  TANDEM_ASSIGN_OR_RETURN(bool read, AwaitServiceStream(*device, read_by));
  if (!read || std::atomic_ref<uint32_t>(*gpu->staging).load(std::memory_order_acquire) != from) return false;
  TANDEM_RETURN_IF_ERROR(driver_.StreamWriteValue32(stream, address, to));
  // Written in any case, if not now: the caller goes on behind it.
  TANDEM_RETURN_IF_ERROR(AwaitServiceStream(*device, deadline).status());
  return true;
}

}  // namespace tandem::client
