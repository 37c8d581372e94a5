// File: local_work.h
//
// `LocalWork`: products, copies, sums and norms of one rank's own memory on any stream, for launches without
// lanes (docs/client-placement.md).
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "tandem/status.h"

namespace tandem::cuda {

// All work that is enqueued shares one scratch memory: it must follow one another on the GPU, whatever its
// streams. Thread rule: one thread at a time.
class LocalWork {
 public:
  // Allocates the scratch memory and loads the kernels into the device's context.
  static Result<std::unique_ptr<LocalWork>> Create(std::shared_ptr<CudaDevice> device,
                                                   std::shared_ptr<MatmulChooser> chooser);

  // Before the first launch: tries cuBLASLt's candidates on the device's service stream, which loads their
  // kernels. Addresses are not read. Waits for the GPU.
  Status Prepare(const MatmulArgs& product, const TrialEffort& effort);

  // Enqueue on `stream`, with the device's context current. Nothing is allocated, loaded or tried: a capture
  // may record them. fp8 operands must lie as cuBLASLt wants them; others run on the plain kernel.
  Status Enqueue(const MatmulArgs& product, CUstream stream);
  Status Enqueue(const CopyArgs& copy, CUstream stream);
  Status Enqueue(const ReduceArgs& sum, CUstream stream);
  // Behind what makes the sum; see LaunchNorm.
  Status Enqueue(const NormArgs& norm, CUstream stream);

  // Gives up the scratch memory while no work is under way, and makes it again at the same addresses. In between,
  // nothing is enqueued, and no capture replayed. Both are idempotent.
  Status Vacate() { return scratch_.Vacate(); }
  Status Refill() { return scratch_.RefillAnew(); }

 private:
  LocalWork(std::shared_ptr<CudaDevice> device, std::shared_ptr<MatmulChooser> chooser)
      : device_(std::move(device)), chooser_(std::move(chooser)) {}

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<MatmulChooser> chooser_;
  VmmAllocation scratch_;
};

}  // namespace tandem::cuda
