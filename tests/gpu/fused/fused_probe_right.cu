#include "tests/gpu/fused/fused_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedRight() { return MakeProbedVariant<false, false, false>(); }
SkinnyVariant SkinnyProbedRight() { return MakeProbedSkinny<false, false, false>(); }
}  // namespace tandem::cuda
