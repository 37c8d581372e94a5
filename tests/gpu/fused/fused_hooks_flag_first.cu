#include "tests/gpu/fused/fused_test_hooks.cuh"

namespace tandem::cuda {
FusedVariant HookedFlagFirst() { return MakeHookedVariant<true, false, false>(); }
SkinnyVariant SkinnyHookedFlagFirst() { return MakeHookedSkinny<true, false, false>(); }
}  // namespace tandem::cuda
