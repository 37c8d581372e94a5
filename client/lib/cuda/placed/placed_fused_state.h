// File: placed_fused_state.h
//
// `PlacedFusedState`: the device memory of a group's client-placed fused matmuls.
#pragma once

#include <memory>

#include "kernels/cuda/fused/placed_fused.h"
#include "kernels/cuda/lane/cuda_device.h"
#include "tandem/status.h"

namespace tandem::client {

// Some 19 MB, which launches that follow one another share. Given back without waiting for a GPU, on any
// thread. No kernel may use it any more by then.
class PlacedFusedState {
 public:
  // Zeroed where kernels expect it. Waits for the GPU, with the device's context current.
  static Result<std::shared_ptr<PlacedFusedState>> Make(std::shared_ptr<cuda::CudaDevice> device);
  ~PlacedFusedState();

  cuda::PlacedFusedMemory memory() const;

 private:
  PlacedFusedState() = default;

  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<cuda::VmmAllocation> memory_;
};

}  // namespace tandem::client
