#include "tests/gpu/fused/fused_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedStaleEpoch() { return MakeProbedVariant<false, false, true>(); }
SkinnyVariant SkinnyProbedStaleEpoch() { return MakeProbedSkinny<false, false, true>(); }
}  // namespace tandem::cuda
