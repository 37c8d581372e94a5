#include "client/lib/cuda/placed/placed_fused_state.h"

#include <chrono>
#include <utility>

#include "client/lib/cuda/context_scope.h"
#include "client/lib/cuda/service_stream.h"
#include "client/lib/deferred_reclaimer.h"

namespace tandem::client {
namespace {

constexpr auto kZeroedWithin = std::chrono::seconds(2);
// What kernels expect zeroed: their state, the word that cancels a launch, the counters of pushes.
constexpr size_t kCancelledOffset = cuda::kFusedStateBytes, kPushedOffset = kCancelledOffset + 128;
constexpr size_t kPartialsOffset = 2 * cuda::kFusedStateBytes;
static_assert(kPushedOffset + cuda::kMaxPushes * sizeof(uint32_t) <= kPartialsOffset);

// Lets go of what needs the driver, on a thread that may wait.
struct StateRemains {
  std::shared_ptr<cuda::CudaDevice> device;
  std::shared_ptr<cuda::VmmAllocation> memory;

  ~StateRemains() {
    SlowCallScope scope(device->driver());
    if (device->Enter().ok()) memory.reset();
  }
};

}  // namespace

Result<std::shared_ptr<PlacedFusedState>> PlacedFusedState::Make(std::shared_ptr<cuda::CudaDevice> device) {
  std::shared_ptr<PlacedFusedState> made(new PlacedFusedState);
  TANDEM_ASSIGN_OR_RETURN(auto memory,
                          cuda::VmmAllocation::Create(device, kPartialsOffset + cuda::kPartialBytes));
  made->memory_ = std::make_shared<cuda::VmmAllocation>(std::move(memory));
  TANDEM_RETURN_IF_ERROR(device->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(made->memory_->data()),
                                                        0, kPartialsOffset, device->service_stream()));
  TANDEM_ASSIGN_OR_RETURN(const bool done,
                          AwaitServiceStream(*device, std::chrono::steady_clock::now() + kZeroedWithin));
  if (!done) return DeadlineExceeded("the GPU does not answer");
  made->device_ = std::move(device);
  return made;
}

PlacedFusedState::~PlacedFusedState() {
  if (device_ == nullptr) return;
  auto remains = std::make_shared<StateRemains>();
  remains->device = device_;
  remains->memory = std::move(memory_);
  DeferredReclaimer::Get().Discard(std::move(remains));
}

cuda::PlacedFusedMemory PlacedFusedState::memory() const {
  std::byte* const base = reinterpret_cast<std::byte*>(memory_->data());
  cuda::PlacedFusedMemory memory;
  memory.fused = {base, base + kPartialsOffset};
  memory.cancelled = reinterpret_cast<uint64_t*>(base + kCancelledOffset);
  memory.pushed = reinterpret_cast<uint32_t*>(base + kPushedOffset);
  return memory;
}

}  // namespace tandem::client
