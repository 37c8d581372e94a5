#include "tests/gpu/native_probes.cuh"

namespace tandem::cuda {
FusedVariant ProbedRight() { return MakeProbedVariant<false, false, false>(); }
FewRowsVariant FewRowsProbedRight() { return MakeProbedFewRows<false, false, false>(); }
}  // namespace tandem::cuda
