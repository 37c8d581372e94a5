// In place of cuda_rank_device.cc in builds without CUDA.
#include "client/device/rank_device.h"

namespace tandem {

Result<std::shared_ptr<RankDevice>> internal::MakeCudaRankDevice(const std::string&) {
  return Unimplemented("this build has no CUDA: configure with -DTANDEM_CUDA=ON");
}

}  // namespace tandem
