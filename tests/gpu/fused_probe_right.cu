#include "tests/gpu/fused_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedRight() { return MakeProbedVariant<false, false, false>(); }
SkinnyVariant SkinnyProbedRight() { return MakeProbedSkinny<false, false, false>(); }
}  // namespace tandem::cuda
