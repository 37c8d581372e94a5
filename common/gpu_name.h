// File: gpu_name.h
//
// Names of GPUs. A GPU is known by its UUID everywhere, never by its ordinal. Engines that share a
// GPU (`engines_per_gpu`, for tests of more ranks than GPUs) each have a GPU name: "GPU-…#0",
// "GPU-…#1", …
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The UUID of the device behind `gpu`, as NVML and CUDA know it.
constexpr std::string_view DeviceUuid(std::string_view gpu) { return gpu.substr(0, gpu.find('#')); }

// The name of the `engine`th share of the device with this UUID.
inline std::string SharedGpuName(std::string_view device_uuid, int engine) {
  return std::string(device_uuid) + "#" + std::to_string(engine);
}

}  // namespace tandem
