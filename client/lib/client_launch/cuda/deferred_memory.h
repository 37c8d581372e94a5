// File: deferred_memory.h
//
// Device memory of this process that may be dropped on any thread: the driver's calls are made on another.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cuda/device/cuda_device.h"
#include "tandem/status.h"

namespace tandem::client {

// At least `bytes`, aligned to 256 bytes, not zeroed, with the device's context current. Its last owner gives
// it back without waiting for a GPU. No kernel may use it any more by then.
Result<std::shared_ptr<std::byte>> AllocateDeferred(std::shared_ptr<cuda::CudaDevice> device, size_t bytes);

}  // namespace tandem::client
