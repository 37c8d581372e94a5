// File: deferred_memory.h
//
// Device memory of this process that may be dropped on any thread: the driver's calls are made on another.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cuda/device/cuda_device.h"
#include "tandem/status.h"

namespace tandem::client {

// Its last owner gives the memory back without waiting for a GPU. No kernel may use it any more by then.
class DeferredMemory {
 public:
  // At least `bytes`, aligned to 256 bytes, not zeroed, with the device's context current.
  static Result<std::shared_ptr<DeferredMemory>> Create(std::shared_ptr<cuda::CudaDevice> device,
                                                        size_t bytes);
  ~DeferredMemory();
  DeferredMemory(const DeferredMemory&) = delete;
  DeferredMemory& operator=(const DeferredMemory&) = delete;

  std::byte* data() const;
  // Gives up the memory and keeps its addresses, which nothing uses before Refill. Both with the device's context
  // current, and idempotent.
  Status Vacate();
  // Makes memory at the same addresses, without the contents.
  Status Refill();

 private:
  struct Remains;
  explicit DeferredMemory(std::shared_ptr<Remains> remains);
  std::shared_ptr<Remains> remains_;
};

}  // namespace tandem::client
