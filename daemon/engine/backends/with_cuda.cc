#include <cstdlib>

#include "daemon/engine/backends/backends.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem::engine {

void SetCudaEnvironment() {
  // As many hardware queues as there are: lanes must not stand behind one another, nor what releases them.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  // No NVLink multicast, and NCCL's meeting point stays on this node.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

Result<std::unique_ptr<Backend>> MakeCudaEngineBackend(const BackendRequest&) { return MakeCudaBackend({.device = 0}); }

}  // namespace tandem::engine
