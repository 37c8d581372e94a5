#include "client/lib/client_launch/cuda/deferred_memory.h"

#include <utility>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/cuda/context_scope.h"

namespace tandem::client {
namespace {

// Lets go of what needs the driver, on a thread that may wait.
struct MemoryRemains {
  std::shared_ptr<cuda::CudaDevice> device;
  cuda::VmmAllocation memory;

  ~MemoryRemains() {
    SlowCallScope scope(device->driver());
    if (device->Enter().ok()) memory = cuda::VmmAllocation();
  }
};

struct DeferredMemory {
  std::shared_ptr<MemoryRemains> remains;

  ~DeferredMemory() { DeferredReclaimer::Get().Discard(std::move(remains)); }
};

}  // namespace

Result<std::shared_ptr<std::byte>> AllocateDeferred(std::shared_ptr<cuda::CudaDevice> device, size_t bytes) {
  auto made = std::make_shared<DeferredMemory>();
  made->remains = std::make_shared<MemoryRemains>();
  TANDEM_ASSIGN_OR_RETURN(made->remains->memory, cuda::VmmAllocation::Create(device, bytes));
  made->remains->device = std::move(device);
  std::byte* const data = made->remains->memory.data();
  return std::shared_ptr<std::byte>(std::move(made), data);
}

}  // namespace tandem::client
