// File: trial_memory.h
//
// `TrialMemory`: what products are tried on. One mapping that is kept from trial to trial: a plan's
// preparation maps and unmaps nothing while other work runs on the GPU, and a trial costs no calls for
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/device/cuda_device.h"

namespace tandem::cuda {

// Thread rule: one trial at a time.
class TrialMemory {
 public:
  // Larger mappings are given back by Release.
  static constexpr size_t kMaxBytes = size_t{64} << 20;
  // Parts begin at multiples of this.
  static constexpr size_t kAlignment = 4096;

  explicit TrialMemory(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  // The addresses of parts of so many bytes, one behind the other, until Release. Their content is undefined.
  // Nothing may run on what was taken before: what is too small is unmapped first. RESOURCE_EXHAUSTED where
  // the GPU is full.
  Result<std::vector<std::byte*>> Take(std::span<const size_t> bytes);

  // Ends a trial: waits until `stream`, which alone may have used the memory, has done all its work, then
  // unmaps what is not worth keeping. If the wait fails, the context is lost: the memory stays, for nobody
  // knows what still runs on it.
  Status Release(CUstream stream);

  // Unmaps what Release has kept. Not within a trial.
  void GiveBack() { memory_ = VmmAllocation(); }

 private:
  std::shared_ptr<CudaDevice> device_;
  VmmAllocation memory_;
};

}  // namespace tandem::cuda
