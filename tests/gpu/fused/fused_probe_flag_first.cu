#include "tests/gpu/fused/fused_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedFlagFirst() { return MakeProbedVariant<true, false, false>(); }
SkinnyVariant SkinnyProbedFlagFirst() { return MakeProbedSkinny<true, false, false>(); }
}  // namespace tandem::cuda
