#include "kernels/cuda/client_launch/local_work.h"

#include <utility>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/lane/copy_plan.h"
#include "kernels/cuda/lane/norm_plan.h"
#include "kernels/cuda/lane/reduce_plan.h"

namespace tandem::cuda {

Result<std::unique_ptr<LocalWork>> LocalWork::Create(std::shared_ptr<CudaDevice> device,
                                                     std::shared_ptr<MatmulChooser> chooser) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  TANDEM_RETURN_IF_ERROR(LoadLocalKernels().WithContext("loading the kernels of local work"));
  std::unique_ptr<LocalWork> made(new LocalWork(std::move(device), std::move(chooser)));
  TANDEM_ASSIGN_OR_RETURN(made->scratch_, VmmAllocation::Create(made->device_, kMatmulScratchBytes));
  return made;
}

Status LocalWork::Prepare(const MatmulArgs& product, const TrialEffort& effort) {
  Status prepared = chooser_->Prepare(product, effort);
  // The process's memory is its user's.
  chooser_->GiveBackTrialMemory();
  return prepared;
}

Status LocalWork::Enqueue(const MatmulArgs& product, CUstream stream) {
  return chooser_->Enqueue(product, scratch_.data(), stream);
}

Status LocalWork::Enqueue(const CopyArgs& copy, CUstream stream) {
  return EnqueueCopy(copy, device_->driver(), stream);
}

Status LocalWork::Enqueue(const ReduceArgs& sum, CUstream stream) { return EnqueueReduce(sum, stream); }

Status LocalWork::Enqueue(const NormArgs& norm, CUstream stream) { return EnqueueNorm(norm, stream); }

}  // namespace tandem::cuda
