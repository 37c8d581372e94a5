#include "client/lib/client_launch/cuda/client_fused_state.h"

#include <chrono>
#include <utility>

#include "client/lib/cuda/context_scope.h"
#include "client/lib/cuda/service_stream.h"

namespace tandem::client {
namespace {

constexpr auto kZeroedWithin = std::chrono::seconds(2);
// Kernels expect these zeroed: their state, the word that cancels a launch, the counters of pushes.
constexpr size_t kCancelledOffset = cuda::kFusedStateBytes, kPushedOffset = kCancelledOffset + 128;
constexpr size_t kPartialsOffset = 2 * cuda::kFusedStateBytes;
static_assert(kPushedOffset + (1 + cuda::kMaxPushes) * sizeof(uint32_t) <= kPartialsOffset);

}  // namespace

Result<std::shared_ptr<ClientFusedState>> ClientFusedState::Make(std::shared_ptr<cuda::CudaDevice> device) {
  std::shared_ptr<ClientFusedState> made(new ClientFusedState);
  TANDEM_ASSIGN_OR_RETURN(made->memory_,
                          DeferredMemory::Create(device, kPartialsOffset + cuda::kPartialBytes));
  made->device_ = std::move(device);
  TANDEM_RETURN_IF_ERROR(made->Reset());
  return made;
}

Status ClientFusedState::Reset() {
  TANDEM_RETURN_IF_ERROR(device_->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(memory_->data()), 0,
                                                         kPartialsOffset, device_->service_stream()));
  TANDEM_ASSIGN_OR_RETURN(const bool done,
                          AwaitServiceStream(*device_, std::chrono::steady_clock::now() + kZeroedWithin));
  return done ? Status::Ok() : DeadlineExceeded("the GPU does not answer");
}

Result<std::shared_ptr<std::byte>> ClientFusedState::Allocate(size_t bytes) {
  SlowCallScope scope(device_->driver());
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<DeferredMemory> memory, DeferredMemory::Create(device_, bytes));
  std::lock_guard lock(mutex_);
  std::erase_if(more_, [](const auto& known) { return known.expired(); });
  more_.push_back(memory);
  std::byte* const data = memory->data();
  return std::shared_ptr<std::byte>(std::move(memory), data);
}

std::vector<std::shared_ptr<DeferredMemory>> ClientFusedState::Alive() {
  std::vector<std::shared_ptr<DeferredMemory>> alive = {memory_};
  std::lock_guard lock(mutex_);
  for (const auto& known : more_) {
    if (std::shared_ptr<DeferredMemory> memory = known.lock()) alive.push_back(std::move(memory));
  }
  return alive;
}

Status ClientFusedState::Vacate() {
  for (const auto& memory : Alive()) TANDEM_RETURN_IF_ERROR(memory->Vacate());
  return Status::Ok();
}

Status ClientFusedState::Refill() {
  for (const auto& memory : Alive()) TANDEM_RETURN_IF_ERROR(memory->Refill());
  return Reset();
}

Status ClientFusedState::Copy(const StagingCopy& copy, CUstream stream) const {
  return device_->driver().MemcpyAsync(reinterpret_cast<CUdeviceptr>(copy.to),
                                       reinterpret_cast<CUdeviceptr>(copy.from), copy.bytes, stream);
}

cuda::ClientFusedMemory ClientFusedState::memory() const {
  std::byte* const base = memory_->data();
  cuda::ClientFusedMemory memory;
  memory.fused = {base, base + kPartialsOffset};
  memory.cancelled = reinterpret_cast<uint64_t*>(base + kCancelledOffset);
  memory.pushed = reinterpret_cast<uint32_t*>(base + kPushedOffset);
  return memory;
}

}  // namespace tandem::client
