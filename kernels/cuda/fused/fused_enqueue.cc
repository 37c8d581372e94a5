#include <memory>

#include "kernels/cuda/fused/fused_plan.h"

namespace tandem::cuda {
namespace {

Result<std::unique_ptr<PreparedWork>> Prepare(const CollectiveArgs& args, const FusedMemory& memory) {
  TANDEM_ASSIGN_OR_RETURN(const FusedMatmul fused, MakeFusedMatmul(args, memory));
  TANDEM_ASSIGN_OR_RETURN(const FusedVariant* variant, FindFusedVariant(fused));
  TANDEM_ASSIGN_OR_RETURN(const FusedMatmulParams params, MakeFusedParams(fused, *variant));
  return std::unique_ptr<PreparedWork>(std::make_unique<PreparedFused>(params, variant, fused.tiling.ctas));
}

}  // namespace

Status EnqueueFused(const CollectiveArgs& args, const FusedMemory& memory, CUstream_st* stream,
                    const FusedCalls& calls) {
  std::unique_ptr<PreparedWork> unkept;
  std::unique_ptr<PreparedWork>& prepared = args.prepared != nullptr ? *args.prepared : unkept;
  if (prepared == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(prepared, Prepare(args, memory));
  }
  return static_cast<PreparedFused&>(*prepared).Enqueue(args, stream, calls);
}

}  // namespace tandem::cuda
