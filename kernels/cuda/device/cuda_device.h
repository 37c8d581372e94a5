// File: cuda_device.h
//
// `CudaDevice`: one GPU and its primary context, shared by all that a backend makes; and `VmmAllocation`,
// memory of the device by the virtual memory management calls, which never wait for a lane (cudaFree would).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/device/gpu_clock.h"
#include "tandem/status.h"

namespace tandem::cuda {

class CudaDevice {
 public:
  // Starts the driver if needed and retains the primary context of device `ordinal`.
  static Result<std::shared_ptr<CudaDevice>> Create(CudaDriver* driver, int ordinal);

  CudaDriver& driver() const { return *driver_; }
  const std::string& name() const { return name_; }
  size_t granularity() const { return granularity_; }
  size_t memory_bytes() const { return memory_bytes_; }
  CUmemAllocationProp AllocationProperties() const;
  // Makes the device's context current on this thread.
  Status Enter() const;
  // The stream priority for Backend::MakeLane's `priority`.
  int StreamPriority(int priority) const;
  // OK while the context lives; ABORTED with reason kContextLost once it does not. A query, no work for the
  // device.
  Status Health() const;
  // A stream of the device's own, on which nothing ever waits for a word.
  CUstream service_stream() const { return service_stream_; }
  // CLOCK_MONOTONIC nanoseconds at which `event` was reached; it must have been.
  Result<int64_t> EventTimeNs(CUevent event);

 private:
  CudaDevice() = default;
  // Two looks at an event, and the clock: it was reached between them.
  struct Looks {
    int64_t before_ns = 0, after_ns = 0;
    int64_t between() const { return after_ns - before_ns; }
  };
  // Records `event` and looks until it has been reached.
  Result<Looks> RecordAndLook(CUevent event);
  // Records an anchor event anew, notes the clock, and how fast the GPU's has been since the anchor before.
  Status MoveAnchor();

  CudaDriver* driver_ = nullptr;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  size_t granularity_ = 0;
  size_t memory_bytes_ = 0;
  int least_priority_ = 0, greatest_priority_ = 0;
  CUstream service_stream_ = nullptr;

  std::mutex anchor_mutex_;
  CUevent anchors_[3] = {};  // the first is in use
  GpuClock clock_;
};

// A mapped range of VMM memory: created here, or imported by descriptors, one behind the other. Unmapped and
// freed with the object, at once, so no lane may still use it.
class VmmAllocation {
 public:
  // Creates memory of at least `bytes`, mapped for `device`.
  static Result<VmmAllocation> Create(std::shared_ptr<CudaDevice> device, size_t bytes);
  // Maps the memory behind `fd` for `device`. INVALID_ARGUMENT when it is no such memory or shorter than
  // `bytes`.
  static Result<VmmAllocation> Import(std::shared_ptr<CudaDevice> device, int fd, size_t bytes);
  // The same for several allocations that are to lie one behind the other; bytes[i] is all of the memory
  // behind fds[i].
  static Result<VmmAllocation> ImportChunks(std::shared_ptr<CudaDevice> device, std::span<const int> fds,
                                            std::span<const uint64_t> bytes);

  VmmAllocation() = default;
  VmmAllocation(VmmAllocation&& other) noexcept;
  VmmAllocation& operator=(VmmAllocation&& other) noexcept;
  ~VmmAllocation();

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  size_t bytes() const { return bytes_; }
  // Unmaps and frees the memory and keeps its addresses, which nothing may use until Refill. Idempotent.
  Status Vacate();
  // Maps the memory behind `fd`, of bytes(), at the same addresses, in place of what is mapped there.
  Status Refill(int fd);
  // Behind Vacate, maps memory that is created here, as Create's. Nothing where memory is mapped.
  Status RefillAnew();
  // INVALID_ARGUMENT unless all of it is memory of `device` itself.
  Status CheckOwnDevice() const;
  // A descriptor of memory that was created here; other processes can import it, and it keeps the memory
  // alive.
  Result<UniqueFd> Export() const;

 private:
  struct Chunk {
    CUmemGenericAllocationHandle handle = 0;
    size_t bytes = 0;
    bool mapped = false;
  };
  Status Map();
  // Maps one allocation of bytes() in place of the chunks, and owns it.
  Status Replace(CUmemGenericAllocationHandle handle);
  // Maps the chunks at `address_`, which is reserved.
  Status MapChunks();
  void Release();

  std::shared_ptr<CudaDevice> device_;
  std::vector<Chunk> chunks_;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tandem::cuda
