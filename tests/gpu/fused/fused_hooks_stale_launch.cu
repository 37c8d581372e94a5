#include "tests/gpu/fused/fused_test_hooks.cuh"

namespace tandem::cuda {
FusedVariant HookedStaleLaunch() { return MakeHookedVariant<false, false, true>(); }
SkinnyVariant SkinnyHookedStaleLaunch() { return MakeHookedSkinny<false, false, true>(); }
}  // namespace tandem::cuda
