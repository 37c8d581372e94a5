#include <memory>

#include "kernels/cuda/fused/fused_plan.h"

namespace tandem::cuda {

Status EnqueueFused(const CollectiveArgs& args, const FusedMemory& memory, CUstream_st* stream,
                    PreparedFused::Launch launch) {
  const auto make = [&]() -> Result<std::unique_ptr<PreparedFused>> {
    TANDEM_ASSIGN_OR_RETURN(const FusedMatmul fused, MakeFusedMatmul(args, memory));
    TANDEM_ASSIGN_OR_RETURN(const FusedVariant* variant, FindFusedVariant(fused));
    TANDEM_ASSIGN_OR_RETURN(const FusedMatmulParams params, MakeFusedParams(fused, *variant));
    return std::make_unique<PreparedFused>(params, variant, fused.tiling.ctas);
  };
  return EnqueuePrepared<PreparedFused>(args, stream, launch, make);
}

}  // namespace tandem::cuda
