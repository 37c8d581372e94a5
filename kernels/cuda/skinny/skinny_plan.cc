#include "kernels/cuda/skinny/skinny_plan.h"

#include <memory>

namespace tandem::cuda {

bool TakesSkinny(const SkinnyArgs& args) { return TakesSkinny(args, SkinnyVariants()); }

Status EnqueueSkinny(const CollectiveArgs& args, void* state, CUstream_st* stream,
                     PreparedSkinny::Launch launch) {
  const auto make = [&]() -> Result<std::unique_ptr<PreparedSkinny>> {
    TANDEM_ASSIGN_OR_RETURN(const SkinnyMatmul few, MakeSkinnyMatmul(args, state));
    TANDEM_ASSIGN_OR_RETURN(const SkinnyVariant* variant, FindSkinnyVariant(few));
    TANDEM_ASSIGN_OR_RETURN(const SkinnyParams params, MakeSkinnyParams(few));
    return std::make_unique<PreparedSkinny>(params, variant, few.layout.ctas());
  };
  return EnqueuePrepared<PreparedSkinny>(args, stream, launch, make);
}

}  // namespace tandem::cuda
