#include "client/device/rank_device.h"

namespace tandem {

Result<std::shared_ptr<RankDevice>> RankDevice::Create(const std::string& backend,
                                                       const std::string& gpu_uuid) {
  if (backend == "host") return internal::MakeHostRankDevice();
  if (backend == "cuda") return internal::MakeCudaRankDevice(gpu_uuid);
  return InvalidArgument("unknown backend '" + backend + "'");
}

}  // namespace tandem
