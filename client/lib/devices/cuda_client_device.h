// File: cuda_client_device.h
//
// The CUDA half of the client's seam. The driver is loaded on first use; a GPU's primary context (the one
// that the runtime uses) is retained when memory of it is first needed, and kept. Launches act in their
// stream's own context.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/client_launch/client_queue.h"
#include "client/lib/client_launch/cuda/client_products.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::client {

class CudaClientDevice final : public ClientDevice {
 public:
  // `driver` lives for ever. UNAVAILABLE when it cannot be started.
  static Result<std::shared_ptr<ClientDevice>> Create(cuda::CudaDriver* driver);

  Result<LaunchStream*> Open(StreamRef stream, const std::string& gpu_uuid,
                             LaunchStreamStorage* storage) override;
  Result<std::shared_ptr<void>> PinWords(const std::string& gpu_uuid, std::byte* data, size_t bytes) override;
  Result<std::shared_ptr<DeviceMapping>> Map(const std::string& gpu_uuid, int fd, size_t bytes) override;
  Result<std::shared_ptr<DeviceMapping>> MapForeign(const std::string& gpu_uuid, int fd,
                                                    size_t bytes) override;
  Result<UniqueFd> Allocate(const std::string& gpu_uuid, size_t bytes, size_t* allocated) override;
  Result<bool> Exchange32(const std::string& gpu_uuid, uint32_t* word, uint32_t from, uint32_t to,
                          Clock::time_point deadline) override;
  Status CopyNow(const std::string& gpu_uuid, void* to, const void* from, size_t bytes) override;
  Result<ForeignRange> Describe(const void* address, size_t bytes) override;
  Result<ExportedRange> Export(const ForeignRange& range) override;
  Result<bool> Holds(const ForeignRange& range, uintptr_t address, size_t bytes) override;
  Result<bool> Vanished(const ForeignRange& range) override;
  Result<std::unique_ptr<ClientQueue>> MakeClientQueue(const std::string& gpu_uuid,
                                                       ClientGroup& group) override;

 private:
  struct Gpu {
    CUdevice device = 0;
    std::string uuid;
    std::mutex mutex;                          // of what follows; held by one exchange at a time
    std::shared_ptr<cuda::CudaDevice> opened;  // null until memory of the GPU is needed
    std::shared_ptr<ClientProducts> products;  // null until a group has client-placed plans
    uint32_t* staging = nullptr;               // pinned: where a signal word is read to; for ever
  };

  explicit CudaClientDevice(cuda::CudaDriver* driver) : driver_(*driver) {}
  // NOT_FOUND names the GPUs that this process sees.
  Result<Gpu*> Find(const std::string& gpu_uuid) const;
  Result<Gpu*> FindByOrdinal(CUdevice device) const;
  Result<std::shared_ptr<cuda::CudaDevice>> Opened(Gpu& gpu);
  Result<std::shared_ptr<cuda::CudaDevice>> OpenedLocked(Gpu& gpu);

  Result<uint64_t> Attribute(CUpointer_attribute attribute, uintptr_t address) const;
  Result<ForeignRange> DescribeIpc(ForeignRange range, uintptr_t address, size_t bytes);
  // The id of the memory that is where `piece` was; 0: none.
  Result<uint64_t> CurrentId(const ForeignRange& range, const ForeignRange::Piece& piece) const;
  Result<ForeignRange> DescribeChunks(ForeignRange range, uintptr_t address, size_t bytes);

  cuda::CudaDriver& driver_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace tandem::client
