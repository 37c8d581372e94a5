// The table of the fused kernel's variants for client placement.
#include <vector>

#include "kernels/cuda/fused/fused_variant_list.h"
#include "kernels/cuda/fused/placed_fused.h"

namespace tandem::cuda {

#define TANDEM_DECLARE(name) FusedVariant PlacedFusedVariant_##name();
TANDEM_FUSED_VARIANTS(TANDEM_DECLARE)
#undef TANDEM_DECLARE

std::span<const FusedVariant> PlacedFusedVariants() {
  static const std::vector<FusedVariant> variants = {
#define TANDEM_CALL(name) PlacedFusedVariant_##name(),
      TANDEM_FUSED_VARIANTS(TANDEM_CALL)
#undef TANDEM_CALL
  };
  return variants;
}

}  // namespace tandem::cuda
