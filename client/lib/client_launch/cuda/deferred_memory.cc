#include "client/lib/client_launch/cuda/deferred_memory.h"

#include <utility>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/cuda/context_scope.h"

namespace tandem::client {

// Lets go of what needs the driver, on a thread that may wait.
struct DeferredMemory::Remains {
  std::shared_ptr<cuda::CudaDevice> device;
  cuda::VmmAllocation memory;

  ~Remains() {
    SlowCallScope scope(device->driver());
    if (device->Enter().ok()) memory = cuda::VmmAllocation();
  }
};

Result<std::shared_ptr<DeferredMemory>> DeferredMemory::Create(std::shared_ptr<cuda::CudaDevice> device,
                                                               size_t bytes) {
  auto remains = std::make_shared<Remains>();
  TANDEM_ASSIGN_OR_RETURN(cuda::VmmAllocation memory, cuda::VmmAllocation::Create(device, bytes));
  remains->device = std::move(device);
  remains->memory = std::move(memory);
  return std::shared_ptr<DeferredMemory>(new DeferredMemory(std::move(remains)));
}

DeferredMemory::DeferredMemory(std::shared_ptr<Remains> remains) : remains_(std::move(remains)) {}

DeferredMemory::~DeferredMemory() { DeferredReclaimer::Get().Discard(std::move(remains_)); }

std::byte* DeferredMemory::data() const { return remains_->memory.data(); }

Status DeferredMemory::Vacate() { return remains_->memory.Vacate(); }

Status DeferredMemory::Refill() { return remains_->memory.RefillAnew(); }

}  // namespace tandem::client
