// File: service_stream.h
//
// Waits for a GPU's service stream, on which nothing ever waits for a word.
#pragma once

#include <chrono>

#include "kernels/cuda/device/cuda_device.h"
#include "tandem/status.h"

namespace tandem::client {

// True once all work of the stream is done; false if `deadline` came first. The device's context is current.
Result<bool> AwaitServiceStream(cuda::CudaDevice& device, std::chrono::steady_clock::time_point deadline);

}  // namespace tandem::client
