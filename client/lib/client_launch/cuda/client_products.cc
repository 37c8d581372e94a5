#include "client/lib/client_launch/cuda/client_products.h"

#include <utility>

#include "client/lib/base/cache_folder.h"
#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/cuda/context_scope.h"
#include "drivers/cublaslt/cublas_lt.h"

namespace tandem::client {
namespace {

// cuBLASLt's candidates that are tried for each product, as engines do.
constexpr int kCandidates = 8;

// Unmaps the scratch memory, on a thread that may wait.
struct WorkRemains {
  std::shared_ptr<cuda::CudaDevice> device;
  std::unique_ptr<cuda::LocalWork> work;

  ~WorkRemains() {
    SlowCallScope scope(device->driver());
    if (device->Enter().ok()) work.reset();
  }
};

}  // namespace

Result<std::shared_ptr<cuda::LocalWork>> ClientProducts::MakeWork() {
  std::lock_guard lock(mutex_);
  if (chooser_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(cuda::CublasLt * lt, cuda::LoadCublasLt());
    auto store = std::make_unique<cuda::ChoiceStore>(CacheFolder(), device_->name(), lt->Version());
    chooser_ =
        std::make_shared<cuda::MatmulChooser>(device_, lt, kCandidates, cuda::kTrialCalls, std::move(store));
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cuda::LocalWork> work, cuda::LocalWork::Create(device_, chooser_));
  const std::shared_ptr<cuda::CudaDevice> device = device_;
  return std::shared_ptr<cuda::LocalWork>(work.release(), [device](cuda::LocalWork* made) {
    auto remains = std::make_shared<WorkRemains>();
    remains->device = device;
    remains->work.reset(made);
    DeferredReclaimer::Get().Discard(std::move(remains));
  });
}

}  // namespace tandem::client
