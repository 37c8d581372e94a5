// The table of the fused kernel's variants for client placement.
#include <vector>

#include "kernels/cuda/fused/client_fused.h"
#include "kernels/cuda/fused/fused_variant_list.h"

namespace tandem::cuda {

#define TANDEM_DECLARE(name) FusedVariant ClientFusedVariant_##name();
TANDEM_FUSED_VARIANTS(TANDEM_DECLARE)
#undef TANDEM_DECLARE

std::span<const FusedVariant> ClientFusedVariants() {
  static const std::vector<FusedVariant> variants = {
#define TANDEM_CALL(name) ClientFusedVariant_##name(),
      TANDEM_FUSED_VARIANTS(TANDEM_CALL)
#undef TANDEM_CALL
  };
  return variants;
}

}  // namespace tandem::cuda
