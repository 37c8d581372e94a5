#include "tests/gpu/fused/fused_test_hooks.cuh"

namespace tandem::cuda {
FusedVariant HookedRight() { return MakeHookedVariant<false, false, false>(); }
SkinnyVariant SkinnyHookedRight() { return MakeHookedSkinny<false, false, false>(); }
}  // namespace tandem::cuda
