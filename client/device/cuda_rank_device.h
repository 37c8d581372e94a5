// File: cuda_rank_device.h
//
// RankDevice over the CUDA driver's wrapper, which tests replace by a mock.
#pragma once

#include <memory>
#include <string>

#include "client/device/rank_device.h"
#include "drivers/cuda/cuda_driver.h"

namespace tandem {

// The device with `gpu_uuid` among those that this process sees. NOT_FOUND names those that it sees.
Result<std::shared_ptr<RankDevice>> MakeCudaRankDevice(cuda::CudaDriver* driver, const std::string& gpu_uuid);

}  // namespace tandem
