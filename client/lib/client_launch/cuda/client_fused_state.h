// File: client_fused_state.h
//
// `ClientFusedState`: the device memory of a group's client-placed fused matmuls.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "client/lib/client_launch/cuda/client_staging.h"
#include "client/lib/client_launch/cuda/deferred_memory.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/fused/client_fused.h"
#include "tandem/status.h"

namespace tandem::client {

// Some 19 MB, which launches that follow one another share. May be dropped on any thread, once no kernel uses
// it any more.
class ClientFusedState {
 public:
  // Zeroed where kernels expect it. Waits for the GPU, with the device's context current.
  static Result<std::shared_ptr<ClientFusedState>> Make(std::shared_ptr<cuda::CudaDevice> device);

  cuda::ClientFusedMemory memory() const;
  // As after Make: a launch that has failed may have left it otherwise. No launch is under way. Waits for the
  // GPU, with the device's context current.
  Status Reset();
  // More memory of the same device, with any context current. Also while a stream captures.
  Result<std::shared_ptr<std::byte>> Allocate(size_t bytes);
  // Gives up all of the memory, that of Allocate too, while no launch is under way. Its addresses stay. In between, no
  // launch is made. Both with the device's context current, and idempotent.
  Status Vacate();
  // Makes it again, as after Make.
  Status Refill();
  // Puts a copy onto `stream`, whose context is current.
  Status Copy(const StagingCopy& copy, CUstream stream) const;

 private:
  ClientFusedState() = default;

  // The memory that is in use.
  std::vector<std::shared_ptr<DeferredMemory>> Alive();

  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<DeferredMemory> memory_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<DeferredMemory>> more_;  // guarded: of Allocate
};

}  // namespace tandem::client
