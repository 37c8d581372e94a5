#include <cstdlib>
#include <optional>

#include "common/gpu_name.h"
#include "common/mps_endpoint.h"
#include "drivers/nvml/nvml.h"
#include "engine/backends/backends.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem::engine {
namespace {

// Bytes in use on the GPU with this UUID; 0 where NVML does not say.
uint64_t MemoryUsed(NvmlApi& nvml, const std::string& uuid) {
  Result<int> count = nvml.DeviceCount();
  for (int index = 0; count.ok() && index < *count; ++index) {
    Result<NvmlDevice> device = nvml.DeviceByIndex(index);
    if (!device.ok()) continue;
    Result<std::string> name = nvml.Uuid(*device);
    if (!name.ok() || *name != DeviceUuid(uuid)) continue;
    Result<uint64_t> used = nvml.MemoryUsedBytes(*device);
    return used.ok() ? *used : 0;
  }
  return 0;
}

}  // namespace

void SetNcclEnvironment() {
  // No NVLink multicast, and NCCL's meeting point stays on this node.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

Result<std::unique_ptr<Backend>> MakeCudaEngineBackend(const BackendRequest& request) {
  std::optional<Result<std::unique_ptr<NvmlApi>>> nvml;  // opened by who asks first
  CudaBackendOptions options;
  options.device = 0;
  options.engines = request.engines_per_gpu;
  options.dual_stream_lanes = ProbeMps(MpsPipeDirectory()).answers;
  options.memory_used = [&]() -> uint64_t {
    if (request.engines_per_gpu > 1) return 0;  // NVML counts the others' too
    if (!nvml) nvml.emplace(OpenNvml());
    return nvml->ok() ? MemoryUsed(***nvml, request.gpu_uuid) : 0;
  };
  options.ended_phase = request.ended_phase;
  return MakeCudaBackend(options);
}

}  // namespace tandem::engine
