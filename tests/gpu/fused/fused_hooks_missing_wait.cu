#include "tests/gpu/fused/fused_test_hooks.cuh"

namespace tandem::cuda {
FusedVariant HookedMissingWait() { return MakeHookedVariant<false, true, false>(); }
SkinnyVariant SkinnyHookedMissingWait() { return MakeHookedSkinny<false, true, false>(); }
}  // namespace tandem::cuda
