#include "tests/gpu/fused/fused_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedMissingWait() { return MakeProbedVariant<false, true, false>(); }
SkinnyVariant SkinnyProbedMissingWait() { return MakeProbedSkinny<false, true, false>(); }
}  // namespace tandem::cuda
